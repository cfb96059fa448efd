# A stdio server on nothing but Python: what the children that people run cost to start, at least. It keeps the ledger of
# the fake server, and takes its arguments; the script is not for it.
import fcntl
import json
import os
import socket
import sys
import time

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
ledger = open(options["--ledger"], "r+")
bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
bell.connect(options["--notify"])
bell.setblocking(False)
fcntl.flock(ledger, fcntl.LOCK_EX)
spawn = 1 + sum('"event":"spawned"' in line for line in ledger)


def record(**event):
    entry = {"spawn": spawn, "at": time.time_ns() // 1_000_000} | event
    os.write(ledger.fileno(), (json.dumps(entry, separators=(",", ":")) + "\n").encode())
    try:
        bell.send(b"")
    except OSError:
        pass


record(event="spawned", pid=os.getpid())
fcntl.flock(ledger, fcntl.LOCK_UN)
TOOLS = [
    {"name": "echo", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "write", "inputSchema": {"type": "object"}},
]


def answer(method, params, id):
    if method == "initialize":
        version = min(params["protocolVersion"], "2025-11-25")
        info = {"name": "least", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        tool = params["name"]
        record(event="request", method=method, id=id, tool=tool, version=None, params=params)
        record(event="executed", tool=tool, id=id)
        text = (params.get("arguments") or {}).get("text", "")
        return {"content": [{"type": "text", "text": text}], "isError": False}
    return {} if method == "ping" else None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    result = answer(message["method"], message.get("params") or {}, message["id"])
    said = {"result": result} if result is not None else {"error": {"code": -32601, "message": "Method not found"}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"]} | said) + "\n")
    sys.stdout.flush()
