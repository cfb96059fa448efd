# A host on the MCP tools of Google's Agent Development Kit. See README.md beside this file.
import asyncio
import json
import logging
import sys

from google.adk.tools.mcp_tool.mcp_session_manager import StdioConnectionParams, StreamableHTTPConnectionParams
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset
from mcp import StdioServerParameters

logging.disable(logging.CRITICAL)
words = sys.argv[sys.argv.index("--") + 1 :]


def tell(line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def answer(tools, order):
    try:
        # What the kit's own loop calls, without an agent around it.
        call = tools[order["call"]]._run_async_impl(args=order["args"], tool_context=None, credential=None)
        result = await asyncio.wait_for(call, order["timeout_ms"] / 1000)
        said = {"text": result["content"][0]["text"], "is_error": bool(result.get("isError"))}
    except Exception as error:
        said = {"error": {"message": f"{type(error).__name__}: {error}"}}
    tell({"id": order["id"]} | said)


async def main():
    if words[0] == "--url":
        params = StreamableHTTPConnectionParams(url=words[1], timeout=30)
    else:
        server = StdioServerParameters(command=words[0], args=words[1:])
        params = StdioConnectionParams(server_params=server, timeout=30)
    toolset = McpToolset(connection_params=params)
    tools = {tool.name: tool for tool in await toolset.get_tools()}
    tell({"event": "ready", "version": "its own affair"})
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    tasks = set()
    while line := await stdin.readline():
        tasks.add(asyncio.create_task(answer(tools, json.loads(line))))
    await toolset.close()


asyncio.run(main())
