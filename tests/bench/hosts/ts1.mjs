// A host on the TypeScript SDK 1. See README.md beside this file.
import { host, installed, tell } from "./host.mjs";

const { Client } = await installed("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = await installed("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = await installed("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { ToolListChangedNotificationSchema } = await installed("@modelcontextprotocol/sdk/types.js");

const client = new Client({ name: "ts1", version: "1" });
client.setNotificationHandler(ToolListChangedNotificationSchema, () => tell({ event: "list_changed" }));
const connect = async ({ url, command }) => {
  let version;
  const transport = url
    ? new StreamableHTTPClientTransport(url)
    : new StdioClientTransport({ command: command[0], args: command.slice(1), env: process.env });
  const told = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (negotiated) => told?.((version = negotiated)) ?? (version = negotiated);
  await client.connect(transport);
  return version;
};
await host(client, connect, (params, options) => client.callTool(params, undefined, options));
