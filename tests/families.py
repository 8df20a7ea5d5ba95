"""The chat templates of real models, from the package trl, and for each a tokenizer of bytes with
that model's own tokens: special or not, and swallowing the space behind them or not, as there.

No weights and no vocabulary are needed: what a template does to a conversation depends on neither.
"""
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

found = importlib.util.find_spec("trl")
FOLDER = Path(found.submodule_search_locations[0], "chat_templates") if found else None
WITHOUT_TRL = "trl is not installed, whose package holds the templates: " \
              "pip install -r tests/requirements.txt"

# Llama-2's, which trl lacks, written for these tests with its properties: the rules stand within
# the first user message, replies are padded with spaces, each turn has a bos and an eos of its own.
LLAMA_2 = """\
{% if messages[0].role == 'system' %}\
{% set rules = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}\
{% set messages = messages[1:] %}{% else %}{% set rules = '' %}{% endif %}\
{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}\
{% if m.role == 'user' %}\
{{ bos_token + '[INST] ' + (rules if loop.first else '') + m.content | trim + ' [/INST]' }}\
{% else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"""


@dataclass(frozen=True)
class Family:
    """What is known of a family of models apart from our code: its model cards and its template."""
    file: str                    # among trl's templates; "": LLAMA_2
    special: str                 # added tokens that are declared special,
    plain: str = ""              # and those that are not
    bos: str | None = None
    eos: str = ""
    stop: str = ""               # the token that ends a message
    others: str = ""             # further stop tokens of its generation_config
    stripping: tuple = ()        # tokens that swallow the space behind them
    shown: tuple = ("{}", "{}")  # a reply with what surrounds it: in an earlier turn, and when said
    rules_in_user: bool = False  # no system role
    thoughts: str = ""           # of a reply: "" are words like others; "cut": the template cuts
                                 # them off; "field": it reads them from a field of their own, or
                                 # from the words, and shows the newest; "field only": all of them


CHATML = "<|endoftext|> <|im_start|> <|im_end|>"
CALLS = "<tool_call> </tool_call>"
QWEN = CALLS + " <tool_response> </tool_response> <think> </think>"
LLAMA = "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>"
DEEPSEEK = "<｜User｜> <｜Assistant｜> <think> </think> <｜tool▁sep｜> " \
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> " \
    "<｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
SENTENCE = dict(special="<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜>", plain=DEEPSEEK,
                bos="<｜begin▁of▁sentence｜>", eos="<｜end▁of▁sentence｜>",
                stop="<｜end▁of▁sentence｜>", thoughts="cut",
                shown=("<｜Assistant｜>{}", "<｜Assistant｜><think>\n{}"))
QWEN_3 = dict(special=CHATML, plain=QWEN, eos="<|im_end|>", stop="<|im_end|>",
              others="<|endoftext|>")
OPENED = QWEN_3 | dict(thoughts="field",
                       shown=("assistant\n{}", "assistant\n<think>\n{}"))
LLAMA_3 = dict(special=LLAMA, bos="<|begin_of_text|>", eos="<|eot_id|>", stop="<|eot_id|>",
               others="<|end_of_text|>")
LLAMA_3_1 = LLAMA_3 | dict(special=LLAMA + " <|eom_id|> <|python_tag|>",
                           others="<|end_of_text|> <|eom_id|>")
PHI = dict(special="<s> <|endoftext|> <|assistant|> <|system|> <|end|> <|user|>", plain="</s>",
           bos="<s>", eos="<|endoftext|>", stop="<|end|>", others="<|assistant|>",
           stripping=("</s>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"))
GEMMA = dict(special="<pad> <eos> <bos> <unk> <start_of_turn> <end_of_turn>", plain="<table> \n\n",
             bos="<bos>", eos="<eos>", stop="<end_of_turn>", others="<end_of_turn>")
COHERE = "<BOS_TOKEN> <EOS_TOKEN> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|USER_TOKEN|> " \
    "<|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|>"

FAMILIES = {
    "Qwen2.5": Family("qwen2_5", **QWEN_3 | dict(plain=CALLS)),
    "Qwen3": Family("qwen3", **QWEN_3, thoughts="field"),
    "Qwen3-2507 Instruct": Family("qwen3_instruct_2507", **QWEN_3),
    "Qwen3.5, thinking": Family("qwen3_5_think", **OPENED),
    "Qwen3.5, not thinking": Family("qwen3_5_nothink", **OPENED | dict(
        shown=("assistant\n{}", "assistant\n<think>\n\n</think>\n\n{}"))),
    "Qwen3.6": Family("qwen3_6", **OPENED),
    "Qwen3.8": Family("qwen3_8", **OPENED | dict(thoughts="field only", shown=(
        "assistant\n<think>\n\n</think>\n\n{}", "assistant\n<think>\n{}"))),
    "Llama 2": Family("", special="<s> </s> <unk>", bos="<s>", eos="</s>", stop="</s>",
                      shown=("[/INST] {} </s>", "[/INST]{}</s>")),
    "Llama 3": Family("llama3", **LLAMA_3),
    "Llama 3.1": Family("llama3_1", **LLAMA_3_1),
    "Llama 3.2": Family("llama3_2", **LLAMA_3_1),
    "Phi-3": Family("phi3", **PHI),
    "Phi-3.5": Family("phi3_5", **PHI),
    "Gemma 1": Family("gemma", **GEMMA, rules_in_user=True),
    "Gemma 3": Family("gemma3", **GEMMA),
    "R1-Distill": Family("deepseek_r1_distill", **SENTENCE),
    "DeepSeek-V3": Family("deepseekv3", **SENTENCE),
    "GLM-4-MoE": Family(
        "glm4moe", special="<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> "
        "<|assistant|> <|observation|> /nothink", plain=QWEN + " <arg_key> </arg_key> <arg_value> "
        "</arg_value>", eos="<|endoftext|>", stop="<|user|>", others="<|observation|>",
        shown=("<|assistant|>\n<think></think>\n{}", "<|assistant|>{}"), thoughts="field"),
    "LFM2": Family("lfm2_v2", special="<|startoftext|> " + CHATML + " <|tool_list_start|> "
                   "<|tool_list_end|> <|tool_call_start|> <|tool_call_end|> "
                   "<|tool_response_start|> <|tool_response_end|>", bos="<|startoftext|>",
                   eos="<|im_end|>", stop="<|im_end|>"),
    "Cohere": Family("cohere", special=COHERE, bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>",
                     stop="<|END_OF_TURN_TOKEN|>"),
    "Cohere 2": Family("cohere2", special=COHERE + " <|START_RESPONSE|> <|END_RESPONSE|>",
                       bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>", stop="<|END_RESPONSE|>"),
}


@functools.cache
def tokenizer_of(name, more=()):
    """The family's template and tokens over single bytes; more: further tokens, not special."""
    family, letters = FAMILIES[name], sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = family.special.split(" ")
    for content in [*special, *filter(None, family.plain.split(" ")), *more]:
        tokenizer.add_tokens([AddedToken(content, special=content in special, normalized=False,
                                         rstrip=content in family.stripping)])
    if family.bos:               # as in most: `encode` puts it before every text unless told not to
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{family.bos} $A", special_tokens=[(family.bos, tokenizer.token_to_id(family.bos))])
    template = (FOLDER / f"{family.file}.jinja").read_text() if family.file else LLAMA_2
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=family.bos, eos_token=family.eos,
        clean_up_tokenization_spaces=False, chat_template=template, name_or_path=name)
