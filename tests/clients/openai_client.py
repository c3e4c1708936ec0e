"""What the official openai client makes of an edge: one JSON object on standard output.

Used by the end-to-end tests: openai_client.py BASE_URL, with the key in OPENAI_API_KEY.
"""
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], max_retries=0, timeout=30)


def chat(script, stream, model="m", using=client):
    return using.chat.completions.create(
        model=model,
        stream=stream,
        messages=[{"role": "user", "content": "Hello from the official client: grüß dich ✓"}],
        extra_body={"x_script": script},
    )


def text_of(stream, into):
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            into.append(chunk.choices[0].delta.content)
    return "".join(into)


def name_of_failure(call):
    try:
        call()
    except openai.APIError as e:
        return type(e).__name__
    return None


seen = {
    "stream": text_of(chat({"events": 8, "piece": 3}, True), []),
    "plain": chat({}, False).choices[0].message.content,
    "models": [m.id for m in client.models.list()],
    "unknown": name_of_failure(lambda: chat({}, True, model="not-there")),
    "unauthenticated": name_of_failure(lambda: chat({}, True, using=client.with_options(api_key="wrong"))),
}
parts, error = [], None
try:
    text_of(chat({"events": 9, "after": 3, "ending": "rst"}, True), parts)
except openai.APIError as e:
    error = f"{type(e).__name__}: {e}"
seen["dies"] = {"text": "".join(parts), "error": error}
print(json.dumps(seen))
