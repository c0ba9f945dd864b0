// dynalite ends when a client's request breaks off; a real server forgets that request.
process.on('uncaughtException', (error) => {
  if (error.code !== 'ECONNRESET') {
    console.error(error)
    process.exit(1)
  }
})
