# A host on fastmcp 4. See README.md beside this file.
import asyncio
import contextlib
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from host import host, on_message, server
from mcp.client.subscriptions import listen


class Reentered:
    """A client that is entered anew for each call, as its documentation advises."""

    protocol_version = "2025-11-25"

    def __init__(self, client):
        self.client = client

    async def __aenter__(self):
        pass

    async def __aexit__(self, *_):
        pass



async def main():
    url, command, args, env = server()
    reenter = "--reenter" in sys.argv[: sys.argv.index("--")]
    # Kept alive, the server outlives the client's session, for the next one.
    client = Client(url or StdioTransport(command, args, env, keep_alive=True), message_handler=on_message)

    async def call(tool, arguments, timeout):
        async with client if reenter else contextlib.nullcontext():
            return await client.call_tool_mcp(tool, arguments, timeout=timeout)

    entered = Reentered(client) if reenter else client
    await host(entered, call, client.list_tools, lambda: listen(client.session, tools_list_changed=True))


asyncio.run(main())
