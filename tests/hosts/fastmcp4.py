# A host on fastmcp 4. See README.md beside this file.
import asyncio

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from host import host, on_message, server
from mcp.client.subscriptions import listen


async def main():
    url, command, args, env = server()
    client = Client(url or StdioTransport(command, args, env), message_handler=on_message)

    async def call(tool, arguments, timeout):
        return await client.call_tool_mcp(tool, arguments, timeout=timeout)

    await host(client, call, client.list_tools, lambda: listen(client.session, tools_list_changed=True))


asyncio.run(main())
