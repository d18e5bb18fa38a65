// Drives all seven tools of `abx mcp start` over STDIO with the TypeScript SDK,
// which also checks every structured result against the tool's outputSchema.
//
//   node client.mjs PATH-TO-ABX [ARGUMENT...]
//
// Prints a line a step; ends with code 1 and the difference at the first that
// is not as it should be.

import assert from "node:assert/strict";
import process from "node:process";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const TOOLS = ["create_sandbox", "kill_sandbox", "list_files", "read_file", "run_code", "run_command", "write_file"];
const GUARD = 120_000; // ms; ten times what a loaded machine needs

const [abx, ...args] = process.argv.slice(2);
if (!abx) {
  console.error("usage: node client.mjs PATH-TO-ABX [ARGUMENT...]");
  process.exit(2);
}

const transport = new StdioClientTransport({
  command: abx,
  args: args.length > 0 ? args : ["mcp", "start", "--quiet"],
  stderr: "inherit",
});
const client = new Client({ name: "abx-mcp-ts", version: "1.0.0" });
const server = { closed: false };

async function tool(name, input = {}, options = {}) {
  const result = await client.callTool({ name, arguments: input }, undefined, { timeout: GUARD, ...options });
  const text = result.content.filter((c) => c.type === "text").map((c) => c.text).join("\n");
  return { ...result, text, out: result.structuredContent };
}

async function ok(name, input, options) {
  const result = await tool(name, input, options);
  assert.ok(!result.isError, `${name}: ${result.text}`);
  assert.ok(result.text.length > 0, `${name}: no text for a model to read`);
  assert.ok(result.out, `${name}: no structuredContent`);
  return result;
}

const steps = {
  async "initialize and list the tools"() {
    assert.equal(client.getServerVersion().name, "agent-sandbox");
    assert.ok(client.getServerCapabilities().tools, "no tools capability");
    const { tools } = await client.listTools();
    assert.deepEqual(tools.map((t) => t.name).sort(), TOOLS);
    for (const t of tools) {
      assert.equal(t.inputSchema.type, "object", t.name);
      assert.equal(t.outputSchema?.type, "object", t.name);
      assert.ok(t.description, t.name);
      assert.ok(t.annotations, t.name);
    }
    const code = tools.find((t) => t.name === "run_code").inputSchema;
    assert.deepEqual(code.required, ["code"]);
    assert.deepEqual(code.properties.language.enum, ["python", "javascript", "shell", "typescript", "r"]);
    assert.equal(code.properties.timeout.default, 30);
  },

  async "create_sandbox"() {
    const { out } = await ok("create_sandbox", { timeout: 120, envs: { GREETING: "hello" } });
    assert.match(out.sandbox_id, /^[a-z0-9]+$/);
    assert.ok(out.url.includes(`80-${out.sandbox_id}.`), out.url);
    assert.equal(typeof out.status, "string");
    server.first = out.sandbox_id;
  },

  async "run_command has the sandbox's environment, user and folder"() {
    const { out } = await ok("run_command", { command: 'echo "$GREETING"; id -un; pwd; echo oops >&2; exit 3' });
    assert.equal(out.stdout, "hello\nuser\n/app\n");
    assert.equal(out.stderr, "oops\n");
    assert.equal(out.exit_code, 3);
  },

  async "run_code keeps state"() {
    let { out } = await ok("run_code", { code: "x = 41" });
    assert.equal(out.exit_code, 0);
    ({ out } = await ok("run_code", { code: "print(x + 1)" }));
    assert.equal(out.stdout, "42\n");
    ({ out } = await ok("run_code", { code: "cd /tmp; y=7", language: "shell" }));
    ({ out } = await ok("run_code", { code: 'echo "$y $PWD"', language: "shell" }));
    assert.equal(out.stdout, "7 /tmp\n");
  },

  async "run_code tells the files it made"() {
    const { out } = await ok("run_code", { code: "open('/app/made.txt', 'w').write('12345')" });
    const file = out.output_files.find((f) => f.path === "/app/made.txt");
    assert.deepEqual(file && { name: file.name, size: file.size }, { name: "made.txt", size: 5 });
  },

  async "run_code that fails is a result"() {
    const { out } = await ok("run_code", { code: "1 / 0" });
    assert.notEqual(out.exit_code, 0);
    assert.match(out.stderr, /ZeroDivisionError/);
  },

  async "run_code that runs out of time keeps its state"() {
    await ok("run_code", { code: "kept = 1\nwhile True: pass", timeout: 1 });
    const { out } = await ok("run_code", { code: "print(kept)" });
    assert.equal(out.stdout, "1\n");
  },

  async "write_file, read_file, list_files"() {
    const content = "one\ntwo\n数据 🎉\n";
    let { out } = await ok("write_file", { path: "/app/deep/er/a b.txt", content });
    assert.equal(out.success, true);
    assert.equal(out.bytes_written, Buffer.byteLength(content));
    ({ out } = await ok("read_file", { path: "/app/deep/er/a b.txt" }));
    assert.equal(out.content, content);
    ({ out } = await ok("list_files", { path: "/app/deep/er" }));
    assert.deepEqual(out.files.map(({ name, path, type, size }) => ({ name, path, type, size })), [
      { name: "a b.txt", path: "/app/deep/er/a b.txt", type: "file", size: Buffer.byteLength(content) },
    ]);
    ({ out } = await ok("list_files"));
    const names = out.files.map((f) => `${f.type} ${f.name}`);
    assert.ok(names.includes("file made.txt") && names.some((n) => n.endsWith(" deep")), names.join(", "));
  },

  async "bytes go through as base64, and are refused as text"() {
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    await ok("write_file", { path: "/app/all.bin", content: bytes.toString("base64"), encoding: "base64" });
    const { out } = await ok("read_file", { path: "/app/all.bin", encoding: "base64" });
    assert.equal(out.content, bytes.toString("base64"));
    const refused = await tool("read_file", { path: "/app/all.bin" });
    assert.equal(refused.isError, true);
    assert.match(refused.text, /base64/);
  },

  async "a failure says what is wrong"() {
    let result = await tool("read_file", { path: "/app/nothing-here" });
    assert.equal(result.isError, true);
    assert.match(result.text, /nothing-here/);
    result = await tool("run_command", { command: "true", sandbox_id: "inosuchsandbox" });
    assert.equal(result.isError, true);
    result = await tool("run_command", {});
    assert.equal(result.isError, true);
    assert.match(result.text, /command/);
  },

  async "an unknown tool is an error of the protocol"() {
    await assert.rejects(tool("no_such_tool"), /no_such_tool/);
  },

  async "ping is answered while a call runs, and progress comes"() {
    const seen = [];
    let done = false;
    const call = ok("run_command", { command: "for i in 1 2 3 4; do echo step $i; sleep 1; done" }, {
      onprogress: (p) => seen.push(p),
      resetTimeoutOnProgress: true,
    }).then((r) => ((done = true), r));
    await client.ping();
    assert.equal(done, false, "the ping waited for the call");
    await call;
    assert.ok(seen.length > 0, "no progress in four seconds");
  },

  async "a cancelled call ends, and the sandbox stays"() {
    const abort = new AbortController();
    const call = tool("run_command", { command: "touch /app/started; sleep 600" }, { signal: abort.signal });
    const gone = assert.rejects(call);
    for (;;) {
      const { out } = await ok("list_files");
      if (out.files.some((f) => f.name === "started")) break;
    }
    abort.abort("enough");
    await gone;
    // `pgrep` may be missing inside: look for the sleep by hand, until it is gone.
    await ok("run_command", {
      command: "while grep -qs '^sleep' /proc/[0-9]*/comm && grep -qas 600 /proc/[0-9]*/cmdline; do :; done",
      timeout: 20,
    }).then(({ out }) => assert.equal(out.exit_code, 0));
  },

  async "a second sandbox becomes the default and shares nothing"() {
    const { out } = await ok("create_sandbox");
    assert.notEqual(out.sandbox_id, server.first);
    server.second = out.sandbox_id;
    const inside = await tool("read_file", { path: "/app/made.txt" });
    assert.equal(inside.isError, true);
    const outside = await ok("read_file", { path: "/app/made.txt", sandbox_id: server.first });
    assert.equal(outside.out.content, "12345");
  },

  async "kill_sandbox"() {
    assert.equal((await ok("kill_sandbox", { sandbox_id: server.first })).out.success, true);
    const gone = await tool("run_command", { command: "true", sandbox_id: server.first });
    assert.equal(gone.isError, true);
    assert.equal((await ok("kill_sandbox")).out.success, true);
    const none = await tool("kill_sandbox");
    assert.equal(none.isError, true);
  },

  async "a call without a sandbox makes one"() {
    const calls = await Promise.all(Array.from({ length: 8 }, () => ok("run_command", { command: "hostname" })));
    assert.equal(new Set(calls.map((c) => c.out.stdout)).size, 1, "concurrent first calls made several sandboxes");
  },
};

transport.onclose = () => (server.closed = true);
await client.connect(transport);
let passed = 0;
try {
  for (const [name, step] of Object.entries(steps)) {
    const start = performance.now();
    try {
      await step();
    } catch (err) {
      console.error(`FAILED ${name}`);
      throw err;
    }
    passed++;
    console.log(`ok ${name} (${Math.round(performance.now() - start)} ms)`);
  }
} finally {
  await client.close();
}
console.log(`${passed} steps passed`);
