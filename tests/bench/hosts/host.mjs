// What the hosts on the TypeScript SDKs have in common. See README.md beside this file.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.cwd()}/`);

/** A module of the folder that the host was started in. */
export const installed = (name) => import(pathToFileURL(require.resolve(name)).href);

export const tell = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const failure = ({ code, message, data }) => ({ code, message: String(message), data });

/** Serves what stdin says with this client. `connect` gets the server's command, or its URL, and returns the version. */
export async function host(client, connect, callTool) {
  const server = process.argv.slice(process.argv.indexOf("--") + 1);
  let ending = false;
  client.onclose = () => ending || tell({ event: "closed" });
  try {
    const version = await connect(server[0] === "--url" ? { url: new URL(server[1]) } : { command: server });
    tell({ event: "ready", version });
  } catch (error) {
    tell({ event: "failed", error: String(error) });
    process.exit(1);
  }
  for await (const line of createInterface({ input: process.stdin })) {
    const { id, call, args, timeout_ms: timeout } = JSON.parse(line);
    const asked = call ? called(callTool({ name: call, arguments: args }, { timeout })) : listed(client, { timeout });
    asked.catch((error) => ({ error: failure(error) })).then((said) => tell({ id, ...said }));
  }
  ending = true;
  await client.close();
  process.exit(0);
}

async function called(result) {
  const { content, isError } = await result;
  return { text: content?.[0]?.text, is_error: isError === true };
}

async function listed(client, options) {
  const { tools } = await client.listTools(undefined, options);
  return { tools: tools.map(({ name }) => name) };
}
