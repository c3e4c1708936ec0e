"""What the official openai client makes of a key's limits: one JSON object on standard output.

Used by the end-to-end tests: openai_keys.py BASE_URL ANSWERED REFUSED, with the key in OPENAI_API_KEY. It asks until so many
requests were answered, then so many more that must all be refused.
"""
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], max_retries=0, timeout=30)


def ask():
    return client.chat.completions.with_raw_response.create(
        model="m", messages=[{"role": "user", "content": "hi"}], extra_body={"x_script": {}}
    )


def limits(headers):
    return {name: value for name, value in headers.items() if name.startswith("x-ratelimit-")}


answered = [limits(ask().headers) for _ in range(int(sys.argv[2]))]
refused = []
for _ in range(int(sys.argv[3])):
    try:
        ask()
        refused.append(None)
    except openai.RateLimitError as e:
        refused.append({
            "status": e.status_code,
            "code": e.code,
            "type": e.type,
            "message": str(e),
            "retry_after": e.response.headers.get("retry-after"),
            "reason": e.response.headers.get("x-umbel-reason"),
            "limits": limits(e.response.headers),
        })
models = [m.id for m in client.models.list()]
print(json.dumps({"answered": answered, "refused": refused, "models": models}))
