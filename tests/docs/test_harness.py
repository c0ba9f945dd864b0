"""The harness itself: a block that fails is found, with its page and line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.docs.page import PageError, parse_page
from tests.docs.running import PageRun, SnippetError
from tests.docs.screen import difference


def run(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.chdir(folder)
    return PageRun(parse_page("page.md", textwrap.dedent(text)), folder).run()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("```python\na = 1\nb = a / 0\n```\n", 3),
        ("```python\ndef half(\n```\n", 2),
        ("text\n\n```console\n$ false\n```\n", 4),
        ("```console\n$ true\n$ echo one\ntwo\n```\n", 3),
        ("```console\n$ hoodoo read nowhere\n```\n", 2),
        ("```console\n$ true  # exits 3\n```\n", 2),
        ("```properties\nhoodie.index.type=NO_SUCH\n```\n", 2),
        ("<!-- hidden\nraise ValueError\n-->\n", 2),
        ("```python\nfrom pyspark.sql import SparkSession\n```\n", 2),
        ("```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```\n", 6),
        ("<!-- refused: lock -->\n```properties\nhoodie.index.type=BLOOM\n```\n", 3),
    ],
)
def test_failing_block_is_named_with_page_and_line(
    text: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SnippetError, match=rf"\Apage\.md:{line}: "):
        run(text, tmp_path, monkeypatch)


def test_blocks_of_a_page_share_namespace_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        <!-- file: lines.txt -->
        ```text
        one
        two
        ```

        ```python
        from pathlib import Path

        count = len(Path("lines.txt").read_text().splitlines())
        ```

        <!-- hidden
        assert count == 2
        -->

        ```python
        print("lines:", count)
        ```

        <!-- output -->
        ```text
        lines: 2
        ```

        ```console
        $ wc -l \\
            < lines.txt
        2
        $ hoodoo read missing  # exits 1
        error: ...
        ```

        <!-- not run: it takes an hour -->
        ```console
        $ false
        ```

        <!-- needs: spark -->
        ```python
        raise ValueError
        ```
        """
    assert run(text, tmp_path, monkeypatch) == 6


@pytest.mark.parametrize(
    "text",
    [
        "```python\n",
        "<!-- hidden\n",
        "<!-- needs: kafka -->\n",
        "<!-- not run -->\n",
        "<!-- run -->\n",
    ],
)
def test_page_with_an_unknown_comment_or_an_open_block_is_rejected(text: str) -> None:
    with pytest.raises(PageError):
        parse_page("page.md", text)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("written 20260101120000000", "written   20261128013744123", True),
        ("2026-01-01 12:00:00.000 UTC  3 rows", "2026-11-28 01:37:44.123 UTC 3 rows", True),
        ("3 rows", "4 rows", False),
        ("4.1 KB in 12 ms", "5 KB in 7 ms", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("a\n...\nd", "a\nb\n", False),
        ("id ... done", "id 3f2a done", True),
        ("3f2a91c0-aaaa-bbbb-cccc-0123456789ab-0", "11111111-2222-3333-4444-555555555555-0", True),
        ("./flights", "/folder/flights", True),
    ],
)
def test_output_is_compared_without_times_ids_and_sizes(
    shown: str, printed: str, same: bool
) -> None:
    assert (difference(shown, printed, Path("/folder")) is None) is same
