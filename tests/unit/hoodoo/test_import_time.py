"""The modules that ``import hoodoo`` and the command load, and the modules that they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import click
import pytest
from click.testing import CliRunner

import hoodoo
import timeline.errors
from hoodoo.cli.app import main

ROOT = Path(hoodoo.__file__).parent.parent
HEAVY = ("numpy", "pandas", "pyarrow", "pydantic", "fastavro", "rich")
OWN = ("timeline", "lockproviders", "filegroups", "tableservices", "hoodoo")
OWN_MODULES_MAX = 80  # each costs about 2 ms of CPU; the command may cost 0.5 s
#: What a command that shows the timeline must not import.
UNUSED = (
    "filegroups.files",
    "filegroups.reading",
    "filegroups.table",
    "filegroups.writing",
    "hoodoo.table",
    "lockproviders.dynamodb",
    "lockproviders.sql",
    "numpy",
    "pandas",
    "pyarrow",
    "sqlite3",
    "sqlglot",
    "tableservices",
    "timeline.codecs.archived_instants",
    "timeline.commit",
)


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder without modules, because it searches that folder first."""
    return subprocess.run(
        [sys.executable, *code.split(" ", 1)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT / "docs",
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )


@pytest.mark.parametrize(
    "use",
    [
        "import hoodoo",
        "import hoodoo.errors",
        "from hoodoo.cli import main; main(['--help'], standalone_mode=False)",
        "from hoodoo.cli import main; main(['--version'], standalone_mode=False)",
    ],
)
def test_neither_the_import_nor_the_help_loads_a_large_library(use: str) -> None:
    done = run(f"-c {use}; import sys; print(sorted(sys.modules.keys() & set({HEAVY!r})))")
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the path of a small table and the requested time of its write."""
    path = tmp_path_factory.mktemp("show") / "t"
    with hoodoo.create_table(path, record_key="k") as created:
        return path, created.upsert({"k": ["a"], "v": [1]}).requested_time


@pytest.mark.parametrize("form", ["json", "table"])
@pytest.mark.parametrize(
    ("command", "modules_max"),
    [
        ("timeline show TABLE", OWN_MODULES_MAX),
        ("log TABLE", OWN_MODULES_MAX),
        ("writers show TABLE", OWN_MODULES_MAX),
        ("explain TABLE @-1", OWN_MODULES_MAX + 25),  # and the commit protocol
    ],
)
def test_a_command_that_shows_the_timeline_imports_few_modules(
    table: tuple[Path, str], command: str, modules_max: int, form: str
) -> None:
    path, time = table
    words = [*command.replace("TABLE", str(path)).split(), "-o", form]
    done = run(
        f"-c from hoodoo.cli import main; import sys; main({words!r}, standalone_mode=False); "
        "print('\\n' + ' '.join(sys.modules))"
    )
    shown, loaded = done.stdout.rstrip().rsplit("\n", 1)
    assert time in shown or "writer" in shown, done.stderr
    modules = loaded.split()
    unused = set(UNUSED) - ({"timeline.commit"} if command.startswith("explain") else set())
    assert sorted(set(modules) & unused) == []
    assert len([one for one in modules if one.split(".")[0] in OWN]) <= modules_max


@pytest.mark.parametrize("command", ["timeline show", "log"])
@pytest.mark.parametrize("option", ["hoodie.clean.automatic=perhaps", "hoodie.compact.inline=7"])
def test_a_command_that_shows_the_timeline_checks_the_options_of_all_parts(
    table: tuple[Path, str], command: str, option: str
) -> None:
    done = CliRunner().invoke(main, [*command.split(), str(table[0]), "--hoodie-conf", option])
    assert done.exit_code == 1
    assert option.partition("=")[0] in done.output


def test_the_completion_of_a_command_loads_no_large_library() -> None:
    done = run(
        f"-c from hoodoo.cli import main; import sys\ntry: main(prog_name='hoodoo')\nexcept "
        f"SystemExit: print(sorted(sys.modules.keys() & set({HEAVY!r})))",
        _HOODOO_COMPLETE="bash_complete",
        COMP_WORDS="hoodoo re",
        COMP_CWORD="1",
    )
    assert done.stdout.splitlines() == ["plain,read", "plain,restore", "[]"], done.stderr


def test_pandas_is_not_imported_when_a_table_is_opened() -> None:
    """Most operations on Arrow rows never need it; a pushed filter imports it by itself."""
    done = run("-c import sys, hoodoo; hoodoo.Table; print('pandas' in sys.modules)")
    assert done.stdout.strip() == "False"


def test_every_exported_name_exists() -> None:
    assert [name for name in hoodoo.__all__ if getattr(hoodoo, name) is None] == []
    assert sorted(hoodoo.__all__) == sorted(hoodoo._EXPORTS)
    with pytest.raises(AttributeError, match="no attribute 'Tabel'"):
        hoodoo.Tabel  # noqa: B018


def test_every_error_class_is_in_hoodoo_errors() -> None:
    ours = {
        name
        for name, value in vars(timeline.errors).items()
        if isinstance(value, type) and issubclass(value, timeline.errors.HoodooError)
    }
    assert ours <= set(hoodoo.errors.__all__)
    assert hoodoo.errors.ConflictError is timeline.errors.ConflictError


def test_the_help_of_the_command_names_each_noun_as_its_own_help_does() -> None:
    context = click.Context(main)
    from hoodoo.cli.app import _COMMANDS

    helps = {name: main.get_command(context, name).get_short_help_str(200) for name in _COMMANDS}
    assert helps == {name: text for name, (_, text) in _COMMANDS.items()}


@pytest.mark.parametrize("name", ["timeline", "lockproviders", "filegroups", "tableservices"])
@pytest.mark.parametrize("use", ["-c import hoodoo", "-m hoodoo.cli --version"])
def test_a_foreign_module_under_one_of_our_names_is_explained(
    tmp_path: Path, name: str, use: str
) -> None:
    foreign = tmp_path / f"{name}.py"
    foreign.write_text("VALUE = 1\n")
    done = run(use, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: hoodoo needs its own package '{name}' in {ROOT}")
    assert f"Python finds {foreign}. If that is your module, rename it" in last


def test_a_foreign_folder_without_init_does_not_shadow_ours(tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    done = run("-c import hoodoo", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 0, done.stderr


def test_a_foreign_module_that_was_imported_before_is_explained(tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    (tmp_path / "timeline" / "__init__.py").write_text("")
    code = (
        "-c import sys; sys.path.insert(0, {!r}); import timeline; sys.path.pop(0); import hoodoo"
    )
    done = run(code.format(str(tmp_path)), PYTHONPATH=str(ROOT))
    assert f"Python finds {tmp_path}/timeline/__init__.py" in done.stderr.splitlines()[-1]


def test_every_value_of_a_plug_in_hook_is_in_hoodoo_plugins() -> None:
    import lockproviders.hookspecs
    import tableservices.hookspecs
    import timeline.hookspecs
    from hoodoo import plugins

    hooks = [
        timeline.hookspecs.record_mergers,
        timeline.hookspecs.conflict_strategies,
        lockproviders.hookspecs.lock_provider_entries,
        tableservices.hookspecs.table_services,
        tableservices.hookspecs.compaction_strategies,
    ]
    values = [get_type_hints(hook)["return"].__args__[0] for hook in hooks]
    assert [one for one in values if getattr(plugins, one.__name__, None) is not one] == []


def test_every_error_class_is_an_attribute_of_the_package() -> None:
    names = [name for name in timeline.errors.__all__ if name.endswith("Error")]
    assert len(names) > 30
    for name in names:
        assert getattr(hoodoo, name) is getattr(timeline.errors, name)
    assert set(names) <= set(dir(hoodoo))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("ConflictErro", "ConflictError"), ("opentable", "open_table"), ("Tabel", "Table")],
)
def test_an_unknown_attribute_suggests_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute {name!r}; did you mean {nearest!r}"):
        getattr(hoodoo, name)
    assert not hasattr(hoodoo, "__path_of_nothing__")
