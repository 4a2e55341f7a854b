"""fact_tables.py [--write]

The tables of docs/engines that say which of an engine's settings are facts, made of those by which the plug-ins collect them: prints what is not as it
should be, or writes it. Reads the modules as texts, since they cannot be imported without their engines.
"""

import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: For each page its module, and what the settings of each table are called.
PAGES = {
    "vllm": ("vllm_identity", {"MODEL": "ModelConfig", "CACHE": "CacheConfig", "ATTENTION": "AttentionConfig", "INPUTS": "MultiModalConfig",
                               "LOADING": "LoadConfig", "DRAFT": "SpeculativeConfig", "LORA": "LoRAConfig"}),
    "sglang": ("sglang_identity", {"SETTINGS": "ServerArgs"}),
}
BEGIN, END = "<!-- made by clients/python/tests/fact_tables.py -->\n", "<!-- end -->\n"


def tables(page):
    module, names = PAGES[page]
    tree = ast.parse((ROOT / f"clients/python/hicache/{module}.py").read_text())
    lines = ["| of | setting | what it is |", "| --- | --- | --- |"]
    for each in tree.body:
        if isinstance(each, ast.Assign) and each.targets[0].id in names and isinstance(each.value, ast.Call):
            for name, what in ast.literal_eval(each.value.args[0]).items():
                lines.append(f"| {names[each.targets[0].id]} | `{name}` | {what} |")
    return "\n".join(lines) + "\n"


def page_with_table(page):
    text = (ROOT / f"docs/engines/{page}.md").read_text()
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + tables(page) + END + rest.partition(END)[2], text


if __name__ == "__main__":
    for page in PAGES:
        wanted, found = page_with_table(page)
        if wanted != found and "--write" in sys.argv[1:]:
            (ROOT / f"docs/engines/{page}.md").write_text(wanted)
        elif wanted != found:
            print(f"docs/engines/{page}.md: the table is not as it should be; fact_tables.py --write")
