#!/usr/bin/env python3
"""converse.py HOST:PORT RESULT.json: has an engine with OpenAI's completions API continue four conversations of three turns, and writes down for
each turn what it answered and how many tokens of the prompt it had in its cache. A client sends all of a conversation with each turn."""

import http.client
import json
import sys

SYSTEM = "You are a careful assistant who answers questions about caches, in short sentences and with figures where there are some.\n"
QUESTIONS = [["What is a page?", "How long is it?", "Who writes it?"], ["What is a prefix?", "Who shares it?", "For how long?"],
             ["What is a tier?", "How many are there?", "Which is the largest?"], ["What is a replica?", "Where is it?", "Who needs it?"]]


def complete(address, tokens):
    connection = http.client.HTTPConnection(address, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": tokens, "max_tokens": 24}), {"Content-Type": "application/json"})
    with connection.getresponse() as response:
        answer = json.loads(response.read())
    connection.close()
    if "error" in answer:
        sys.exit(f"converse: {answer['error']['message']}")
    return answer


def main(address, result):
    turns = []
    for questions in QUESTIONS:
        tokens = list(SYSTEM.encode())
        for question in questions:
            tokens += f"Q: {question}\nA: ".encode()
            answer = complete(address, tokens)
            ids = answer["choices"][0]["token_ids"]
            turns.append({"token_ids": ids, "text": answer["choices"][0]["text"], "prompt_tokens": len(tokens),
                          "cached_tokens": answer["usage"]["prompt_tokens_details"]["cached_tokens"]})
            tokens += [*ids, 10]
    with open(result, "w") as file:
        json.dump(turns, file, indent=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
