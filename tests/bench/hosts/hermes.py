# A host on hermes-agent: its own supervisor of MCP servers. See README.md beside this file.
import json
import logging
import os
import sys
import tempfile
import threading

home = tempfile.TemporaryDirectory()
os.environ["HERMES_HOME"] = home.name
logging.basicConfig(level=logging.CRITICAL)

import tools.mcp_tool as mcp_tool  # noqa: E402

words = sys.argv[sys.argv.index("--") + 1 :]
config = {"url": words[1]} if words[0] == "--url" else {"command": words[0], "args": words[1:]}
out = threading.Lock()


def tell(line):
    with out:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def answer(order):
    timeout = order["timeout_ms"] / 1000
    said = json.loads(mcp_tool._make_tool_handler("server", order["call"], timeout)(order["args"]))
    if "error" in said:
        tell({"id": order["id"], "error": {"message": str(said["error"])}})
    else:
        tell({"id": order["id"], "text": str(said["result"]), "is_error": False})


if mcp_tool.register_mcp_servers({"server": config | {"connect_timeout": 30}}):
    tell({"event": "ready", "version": "its own affair"})
    for line in sys.stdin:
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()
    mcp_tool.shutdown_mcp_servers()
else:
    tell({"event": "failed", "error": "no tools"})
home.cleanup()
os._exit(0)
