// What the official Node client makes of an edge: as openai_client.py, which says what is asked and told.
// UMBEL_NODE_MODULES names the directory whose node_modules has the client.
import { createRequire } from "node:module";

const require = createRequire(process.env.UMBEL_NODE_MODULES + "/");
const { OpenAI, APIError, toFile } = require("openai");
const [baseURL, cases] = [process.argv[2], JSON.parse(process.argv[3])];
const messages = [{ role: "user", content: "Hello from the official client: grüß dich ✓" }];

async function chat(using, one, seen) {
  const options = one.usage ? { stream_options: { include_usage: true } } : {};
  const stream = one.stream ?? false;
  const asked = { model: one.model ?? "m", stream, messages, ...options, ...one.body };
  const answer = await using.chat.completions.create(asked);
  if (!stream) {
    seen.text = answer.choices[0].message.content;
    seen.usage = answer.usage.completion_tokens;
    return;
  }
  const tools = [];
  for await (const chunk of answer) {
    if (chunk.usage) seen.usage = chunk.usage.completion_tokens;
    for (const choice of chunk.choices) {
      seen.text += choice.delta.content ?? "";
      for (const call of choice.delta.tool_calls ?? []) {
        const tool = (tools[call.index] ??= { id: "", name: "", arguments: "" });
        tool.id += call.id ?? "";
        tool.name += call.function.name ?? "";
        tool.arguments += call.function.arguments ?? "";
      }
    }
  }
  seen.tools = tools;
}

async function responses(using, one, seen) {
  const answer = await using.responses.create({ model: "m", input: "Hello ✓", stream: one.stream ?? false, ...one.body });
  if (!one.stream) {
    seen.text = answer.output_text;
    return;
  }
  for await (const event of answer) {
    if (event.type === "response.output_text.delta") seen.text += event.delta;
    seen.last = event.type;
  }
}

async function embeddings(using, one, seen) {
  const asked = { model: "m", input: ["a", "b"], encoding_format: "float", ...one.body };
  seen.embedding = (await using.embeddings.create(asked)).data[0].embedding;
}

async function transcriptions(using, one, seen) {
  const file = await toFile(Buffer.concat([Buffer.from("RIFF"), Buffer.alloc(16384, 7)]), "speech.wav");
  seen.text = (await using.audio.transcriptions.create({ model: "m", file })).text;
}

async function models(using, one, seen) {
  seen.models = [];
  for await (const model of using.models.list()) seen.models.push(model.id);
  seen.models.sort();
  seen.retrieved = [];
  for (const id of one.retrieve) seen.retrieved.push((await using.models.retrieve(id)).id);
}

const calls = { chat, responses, embeddings, transcriptions, models };
const result = {};
for (const one of cases) {
  const seen = (result[one.name] = { text: "", error: null });
  const key = one.key ? { apiKey: one.key } : {};
  const using = new OpenAI({ baseURL, maxRetries: one.retries ?? 0, timeout: 60_000, ...key });
  try {
    await calls[one.call ?? "chat"](using, one, seen);
  } catch (error) {
    const status = error.status ?? null;
    seen.error = { status, code: error.code ?? null, kind: error.constructor.name };
    if (status !== null) seen.error.id = Boolean(error.requestID);
    if (!(error instanceof APIError) && status === null) seen.error.code = null;
  }
}
console.log(JSON.stringify(result));
