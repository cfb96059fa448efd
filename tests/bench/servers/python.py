"""The Python SDKs as a server, run as `python python.py PORT` (HTTP) or `python python.py stdio`: whichever of fastmcp
and mcp the interpreter has.

See README.md beside this file for what all servers here have in common.
"""

import asyncio
import os
import sys

stdio = sys.argv[1] == "stdio"
where = {} if stdio else {"host": "127.0.0.1", "port": int(sys.argv[1])}

try:
    from fastmcp import FastMCP

    server = FastMCP("fastmcp")
    arguments = {"transport": "http", "show_banner": False, **where}
except ImportError:
    try:
        from mcp.server.mcpserver import MCPServer

        server = MCPServer("mcp")
        arguments = {"transport": "streamable-http", **where}
    except ImportError:
        from mcp.server.fastmcp import FastMCP

        server = FastMCP("mcp", **where)
        arguments = {"transport": "streamable-http"}

try:
    from mcp_types import ToolAnnotations

    read_only = ToolAnnotations(read_only_hint=True)
except ImportError:
    from mcp.types import ToolAnnotations

    read_only = ToolAnnotations(readOnlyHint=True)


@server.tool(annotations=read_only)
async def echo(text: str) -> str:
    return text


@server.tool(annotations=read_only)
async def slow(text: str, seconds: float) -> str:
    print("running", text, flush=True)
    await asyncio.sleep(seconds)
    return text


if os.environ.get("OTHER_TOOLS"):

    @server.tool(annotations=read_only)
    async def extra(text: str) -> str:
        return text

else:

    @server.tool()
    async def append(text: str, seconds: float = 0) -> str:
        with open(os.environ["LEDGER"], "a") as ledger:
            ledger.write(f"{text}\n")
        print("running", text, flush=True)
        await asyncio.sleep(seconds)
        return text


server.run(**({"transport": "stdio"} if stdio else arguments))
