"""What the official openai client makes of an edge: one JSON object on standard output, with an entry for each case.

Used by the end-to-end tests: openai_client.py BASE_URL CASES, with the key in OPENAI_API_KEY. CASES is a JSON list;
tests/tests/clients.rs says what a case is. openai_client.mjs and langchain_client.py do the same with their clients.
"""
import io
import json
import sys

import openai

base_url, cases = sys.argv[1], json.loads(sys.argv[2])
client = openai.OpenAI(base_url=base_url, max_retries=0, timeout=60)
messages = [{"role": "user", "content": "Hello from the official client: grüß dich ✓"}]


def chat(using, case, seen):
    more = {"stream_options": {"include_usage": True}} if case.get("usage") else {}
    answer = using.chat.completions.create(
        model=case.get("model", "m"), stream=case.get("stream", False), messages=messages, extra_body=case["body"], **more
    )
    if not case.get("stream"):
        seen["text"] = answer.choices[0].message.content
        seen["usage"] = answer.usage.completion_tokens
        return
    tools = {}
    for chunk in answer:
        if chunk.usage:
            seen["usage"] = chunk.usage.completion_tokens
        for choice in chunk.choices:
            seen["text"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                tool = tools.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                tool["id"] += call.id or ""
                tool["name"] += call.function.name or ""
                tool["arguments"] += call.function.arguments or ""
    seen["tools"] = [tools[index] for index in sorted(tools)]


def responses(using, case, seen):
    answer = using.responses.create(
        model="m", input="Hello ✓", stream=case.get("stream", False), extra_body=case["body"]
    )
    if not case.get("stream"):
        seen["text"] = answer.output_text
        return
    for event in answer:
        if event.type == "response.output_text.delta":
            seen["text"] += event.delta
        seen["last"] = event.type


def embeddings(using, case, seen):
    answer = using.embeddings.create(model="m", input=["a", "b"], encoding_format="float", extra_body=case["body"])
    seen["embedding"] = answer.data[0].embedding


def transcriptions(using, case, seen):
    sound = io.BytesIO(b"RIFF" + bytes(range(256)) * 64)
    sound.name = "speech.wav"
    seen["text"] = using.audio.transcriptions.create(model="m", file=sound).text


def models(using, case, seen):
    seen["models"] = sorted(model.id for model in using.models.list())
    seen["retrieved"] = [using.models.retrieve(model).id for model in case["retrieve"]]


calls = {
    "chat": chat,
    "responses": responses,
    "embeddings": embeddings,
    "transcriptions": transcriptions,
    "models": models,
}
result = {}
for case in cases:
    seen = result[case["name"]] = {"text": "", "error": None}
    using = client.with_options(max_retries=case.get("retries", 0))
    if "key" in case:
        using = using.with_options(api_key=case["key"])
    try:
        calls[case.get("call", "chat")](using, case, seen)
    except openai.APIStatusError as error:
        seen["error"] = {"status": error.status_code, "code": error.code, "id": bool(error.request_id)}
    except openai.APIError as error:
        seen["error"] = {"status": None, "code": error.code, "kind": type(error).__name__}
    except Exception as error:  # noqa: BLE001: a broken connection surfaces as whatever the transport raises
        seen["error"] = {"status": None, "code": None, "kind": type(error).__name__}
print(json.dumps(result))
