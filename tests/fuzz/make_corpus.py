"""Writes the seed corpora: small valid inputs, from which mutations start. Run it again after a
format has changed.

usage: make_corpus.py FOLDER"""

import gzip
import hashlib
import json
import pathlib
import struct
import sys

FOLDER = pathlib.Path(sys.argv[1])
HEADER, VERSION = 104, 2  # weft/net/tcp/frame.h, handshake.h


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def save(target, name, content):
    folder = FOLDER / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def frame(
    kind=1, stream=0, epoch=3, channel=1, sequence=0, message=0, offset=0, total=None,
    payload=b"abcd"
):
    total = len(payload) if total is None else total

    def header(crc):
        return struct.pack(
            "<IBBHIIQQQQQII40x", 0x31544657, kind, 0, stream, epoch, crc, channel, sequence,
            message, total, offset, len(payload), crc32c(payload)
        )

    return header(crc32c(header(0))) + payload


def abort(code, peer, text):
    return struct.pack("<ii", code, peer) + text.encode()


def hello(job=b"fuzz", rank=2, to=1, stream=1, world=4, epoch=5, streams=3):
    return (
        struct.pack("<IHHiiiI", 0x68544657, VERSION, stream, rank, to, world, epoch)
        + hashlib.sha256(job).digest()
        + struct.pack("<H", streams)
        + bytes(30)
        + bytes(32)
    )


def handshakes():
    reply = struct.pack("<IHH", 0x72544657, VERSION, 0) + bytes(64)
    save("handshake", "welcome", hello() + bytes(32) + reply + b"WF\0\0")
    save(
        "handshake",
        "refusal",
        hello(rank=3)
        + bytes(32)
        + struct.pack("<IHH", 0x72544657, VERSION, 6)
        + bytes(64)
        + b"WF\6\0",
    )
    save("handshake", "other-job", hello(job=b"x") + bytes(32) + bytes(72) + bytes(4))


def frames():
    save("frame", "data", frame())
    save("frame", "piece", frame(total=1 << 20, offset=1 << 18)[:HEADER])
    save(
        "frame",
        "abort",
        frame(kind=3)[:HEADER] + abort(3, 2, "rank 2 is lost: its connection was closed"),
    )
    save("frame", "goodbye", frame(kind=4, payload=b"")[:HEADER] + abort(0, -1, ""))
    raw = (
        frame()
        + frame(kind=1, sequence=1, message=1)
        + frame(kind=3, sequence=2, payload=abort(2, 0, "late"))
    )
    save("stream", "raw", b"\0\xff" + raw)
    save("stream", "stale", b"\0\x10" + frame(epoch=2, sequence=9) + frame())
    save(
        "stream",
        "made",
        b"\1\xff" + b"".join(bytes([1, 4]) + b"abcd" + bytes([1, i, 0]) for i in range(3)),
    )
    save(
        "stream",
        "pieces",
        b"\1\x03"
        + bytes([65, 4])
        + b"abcd"
        + bytes([1, 0, 4, 4, 0, 0, 0])
        + bytes([65, 4])
        + b"efgh"
        + bytes([1, 0, 0, 8, 0, 0, 0]),
    )
    save(
        "stream",
        "control",
        b"\1\xff"
        + bytes([7, 12])
        + abort(3, 1, "gone")
        + bytes([0, 0, 0])
        + bytes([6, 0, 0, 0, 0]),
    )
    save("mailbox", "expected", bytes([0, 8, 2, 8, 0, 0]))
    save("mailbox", "early", bytes([2, 4, 0, 0, 6, 4, 1, 4, 0, 0, 8, 1, 0]))
    save("mailbox", "pieces", bytes([0, 8, 6, 4, 0, 0, 4, 2, 4, 0, 4]))


def store_text(text):
    return struct.pack("<I", len(text)) + text


def store_member(number):
    return struct.pack("<QIQ", number, number - 1, number) + store_text(b"host:1")


def store_message(kind, entries=(), data=b"", members=(), **numbers):
    """A message of store/internal/message.h."""
    names = ("cluster", "sender", "to", "term", "index", "log_term", "commit", "round", "offset")
    fields = [numbers.get(name, 1) for name in names] + [numbers.get("total", len(data))]
    return (
        bytes([kind])
        + struct.pack("<10Q", *fields)
        + bytes([numbers.get("accepted", 0)])
        + struct.pack("<I", len(entries))
        + b"".join(struct.pack("<QB", 2, kind) + store_text(text) for kind, text in entries)
        + store_text(data)
        + struct.pack("<I", len(members))
        + b"".join(members)
    )


def store_request(op, key=b"k", value=b"v"):
    return (
        bytes([op])
        + struct.pack("<QQ", 7, 1)
        + store_text(key)
        + store_text(value)
        + struct.pack("<QQqI", 0, 0, 1, 1000)
    )


def store_configuration():
    members = b"".join(store_member(number) for number in (1, 2, 3))
    voters = struct.pack("<I3Q", 3, 1, 2, 3)
    return struct.pack("<I", 3) + members + voters + struct.pack("<IQ", 0, 4)


def store():
    empty = struct.pack("<QQQIII", 0, 0, 0, 0, 0, 0)  # state
    snapshot = struct.pack("<QQ", 5, 2) + store_configuration() + store_text(empty)
    save("store", "request", b"\0" + store_request(6))
    save("store", "response", b"\0" + struct.pack("<BQQq", 0, 1, 2, 3) + b"\1" + store_text(b"v")
         + struct.pack("<QI", 4, 1) + store_text(b"k") + store_text(b"v") + struct.pack("<Q", 5)
         + store_text(b""))
    save("store", "snapshot", b"\0" + snapshot)
    save("store", "record", b"\0\2" + store_text(snapshot))
    save("store", "entries", b"\0\3" + struct.pack("<QI", 1, 1) + struct.pack("<QB", 2, 0)
         + store_text(b""))
    save("store", "greeting", b"\0WFTs" + struct.pack("<II", 1, 2) + store_text(b"host:1"))
    append = store_message(0, [(0, b""), (1, store_request(4)), (2, store_configuration())],
                           term=2, commit=3)
    messages = [
        append,
        store_message(0, term=2, index=4, log_term=2, commit=4),
        store_message(2, data=snapshot, term=2, index=5, log_term=2, offset=0),
        store_message(6, term=3, index=9, log_term=2),
        store_message(7, term=3, accepted=1),
        store_message(8, term=3),
        store_message(10, data=store_request(4)),
        store_message(11, members=[store_member(1)]),
        store_message(13, index=9),
    ]
    save("store", "messages",
         b"\1" + b"".join(struct.pack("<H", len(one)) + one for one in messages))
    save("store", "message", b"\0" + append)


def texts():
    save(
        "config",
        "file",
        '[train]\nbatch = 128\nlr = 0.5\ndecay = [0.1, 0.2]\nat = [1, 2]\n[optim]\nname = "adamw"\n'
        '[run]\ntags = ["a", "b"]\nname = "x"\nquiet = true\n',
    )
    save("config", "assignment", "train.batch=128")
    save("config", "assigned-list", 'run.tags=["a", "b"]')
    save("config", "mistakes", "[train]\nbatsh = 1\n")
    save(
        "topology",
        "hosts",
        "[cluster]\nbandwidth = 1.25e8\nlatency = 1e-5\n[host]\nsizes = [4, 4, 3]\n",
    )
    save(
        "topology",
        "groups",
        "world = 4\n[rack]\ngroup_of = [0, 0, 1, 1]\n[host]\nsizes = [1, 1, 1, 1]\n[numa]\n"
        "group_of = [0, 1, 2, 3]\n",
    )
    save("topology", "grid", "world = 6\n[grid]\nrows = 2\ncolumns = 3\nwraps = false\n")
    table = (
        "weft cost table 1\nmachine m\ndate 2026-11-21\ntransport tcp\n"
        "message 0:1e-05 1e+06:0.001\nduplex 0.2\noverhead 1e-06\nreduce 0:0\ncopy 0:0\n"
        "meeting 0\nmeasured all_reduce ring 4 8:1e-05 1024:2e-05\n"
    )
    save("costs", "table", table)
    for index, spec in enumerate(
        (
            "int8:64,stochastic,seed=7", "powersgd:4,warmup=10", "topk:0.01,ef=off",
            "randomk:0.5,delta", "auto"
        )
    ):
        save("costs", f"codec-{index}", spec)
    for message in (
        "joining", "stopping signal", "step 120", "rate 12.500000", "multiple 2 4 8", "lost 3",
        "ranks 4 2 3", "become RANK=1\x1ePLACE=a b"
    ):
        save("messages", message.split()[0], message)
    save("hosts", "list", "a,node[08-10,20]-ib,rack[1-2]node[1-4]")
    save("hosts", "torchrun", "\x001\n\x014\n\x020\n\x032\n\x05127.0.0.1\n\x0629500\n")
    save("hosts", "slurm", "\x073\n\x084\n\x091\n\x231\n\x0b2\n\x0cnode[1-2]\n\x0d77\n")


def safetensors():
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b\\u00e9": {"dtype": "I8", "shape": [8], "data_offsets": [24, 32]},
    }
    save(
        "safetensors",
        "two",
        struct.pack("<H", 32)
        + json.dumps(header, ensure_ascii=False).replace("\\\\", "\\").encode(),
    )
    save(
        "safetensors",
        "scalar",
        struct.pack("<H", 8) + b'{"x":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}',
    )
    save("safetensors", "empty", struct.pack("<H", 0) + b"{}")
    save(
        "safetensors",
        "manifest2",
        b"\0\0weft-checkpoint 2\nchunk 1048576\nfile 1048577 model.safetensors 0f3a55c1 00000001\n"
        b"file 178 state.json 93b1e7aa\n",
    )
    index = {
        "metadata": {"total_size": 32},
        "shapes": {"a": [2, 3], "b": [2]},
        "weight_map": {
            "a[0:1,0:3]": "model-00001-of-00002.safetensors",
            "a[1:2,0:3]": "model-00002-of-00002.safetensors",
            "b": "model-00001-of-00002.safetensors",
        },
    }
    save("safetensors", "index", b"\0\0" + json.dumps(index).encode())
    save("safetensors", "slice", b"\0\0blocks.0.weight[128:256,0:64]")
    save(
        "safetensors",
        "manifest",
        b"\0\0weft-checkpoint 1\ncrc32c 0f3a55c1 44701234 model.safetensors\n"
        b"crc32c 93b1e7aa 178 state.json\n",
    )


def idx():
    image = bytes([0, 0, 8, 3]) + struct.pack(">III", 2, 3, 4) + bytes(range(24))
    label = bytes([0, 0, 8, 1]) + struct.pack(">I", 5) + bytes(5)
    save("idx", "images", image)
    save("idx", "labels", label)
    save("idx", "images.gz", gzip.compress(image, mtime=0))
    save("idx", "labels.gz", gzip.compress(label, mtime=0))


def tokenizer(name, **parts):
    base = {
        "model": {
            "type": "BPE",
            "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4},
            "merges": ["a b", "Ġ ab"],
        },
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 5, "content": "<s>", "special": True}],
    }
    save("tokenizer", name, json.dumps({**base, **parts}, ensure_ascii=False))


def tokenizers():
    tokenizer("bytes")
    split = {
        "type": "Split",
        "pattern": {"Regex": r"(?i:'s|'t)|\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+"},
        "behavior": "Isolated",
        "invert": False,
    }
    tokenizer(
        "split",
        normalizer={"type": "NFC"},
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                split,
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
    )
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "<0x0A>": 4, "<0xFF>": 5}
    model = {
        "type": "BPE",
        "vocab": vocab,
        "merges": [["▁", "a"]],
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
    }
    steps = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    parts = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    tokenizer(
        "pieces", model=model, pre_tokenizer=None,
        normalizer={"type": "Sequence", "normalizers": steps},
        decoder={"type": "Sequence", "decoders": parts}, added_tokens=[]
    )
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    tokenizer(
        "metaspace", model={**model, "byte_fallback": False, "ignore_merges": True},
        pre_tokenizer=space, decoder=space, added_tokens=[]
    )


def ps_command(op, worker=0, keys=(), payload=b""):
    return (
        bytes([op, worker, worker, len(keys), *keys, len(payload)]) + payload
    )


def ps_rows(keys, worker=0):
    values = struct.pack(f"<{2 * len(keys)}f", *[1] * (2 * len(keys)))
    return bytes([5, worker, worker, 0, 1, len(keys), *keys]) + values


def ps():
    ones = struct.pack("<8f", *[1] * 8)
    all_hashes = struct.pack("<QQQ", 0, 0, 2**64 - 1)
    choices = (
        ("sync", 2), ("async-adam", 1), ("ssp", 4), ("int8", 8), ("topk", 16), ("differences", 128)
    )
    for name, choice in choices:
        commands = [
            ps_command(1), ps_command(1, 1), ps_command(3, 0, payload=ones),
            ps_command(3, 1, (0,), ones[:20]), ps_command(3, 1, (1,), ones[:12]), ps_command(2, 1),
            ps_rows((1, 2, 1)), ps_rows((3,), 1), ps_command(3, 0, payload=ones),
            ps_command(6, 0, (0,), all_hashes), ps_command(7), ps_command(8), ps_command(9),
        ]
        save("ps", name, bytes([1, choice]) + b"".join(commands))
    head = struct.pack("<BBIIQQQQQQdQQQI", 3, 0, 0, 1, 1, 7, 2, 1, 1, 0, -1.0, 0, 0, 4, 1)
    head += struct.pack("<I", 0)
    save("ps", "request", b"\0" + head + bytes(-len(head) % 16) + bytes(4))
    message = struct.pack("<BIQIQIQQQQQ", 0, 0, 1, 0, 5, 1, 6, 1, 0, 2, 3)
    save("ps", "message", b"\0" + message + bytes(-len(message) % 16) + head)
    save("ps", "view", b"\0" + struct.pack("<QIIQB", 1, 1, 0, 5, 0))


def tokens():
    for name, vocab, width, ids in (
        ("small", 300, 2, [1, 2, 299]),
        ("large", 70000, 4, [1, 69999]),
        ("beyond", 300, 2, [300]),
    ):
        data = b"".join(i.to_bytes(width, "little") for i in ids)
        header = b"WEFTTOK1" + struct.pack(
            "<IIQIIiI20x", 1, width, len(ids), vocab, 7, 2, crc32c(data)
        )
        save("tokens", name, header + struct.pack("<I", crc32c(header)) + data)


def libsvm():
    text = b"+1 1:0.5 3:-2e1 17:1.25 # comment\r\n\n-1 2:1\n2.5\n1 1:1 1000000:3"
    save("libsvm", "rows", b"\x0c" + text)
    save("libsvm", "rows.gz", b"\x0c" + gzip.compress(text, mtime=0))
    save("libsvm", "zero-based", b"\x0d0 0:1 4:2\n")
    save("libsvm", "mistakes", b"\x02nan 1:1\n1 -3:1\n1 5:1 3:1\n1 1:1e39\n1 qid:3\n")


def liblinear():
    head = "solver_type L2R_LR\nnr_class 3\nlabel 3 1 -2\nnr_feature 2\nbias 1\nw\n"
    save("liblinear", "classes", head + "1 2 3 \n4e-3 -5 6 \n0 0 0.25 \n")
    head = "solver_type L2R_L2LOSS_SVR\nnr_class 2\nnr_feature 3\nbias -1\nw\n"
    save("liblinear", "regression", head + "0.5 \n-1.5 \n0 \n")
    save("liblinear", "claims", head.replace("3", "4000000000") + "0.5 \n")


def table_snapshot(state_arrays, rule, rows, clock=9):
    def block(part):
        return struct.pack("<II", len(part), crc32c(b"".join(part))) + b"".join(part)

    head = b"WEFTTAB1" + struct.pack(
        "<IIIfQQQI", 2, state_arrays, rule, 0.0, 0, len(rows), clock, 0
    )
    made = [
        struct.pack("<QQI", key, touched, 3) + struct.pack("<f", 0.5) * 2 * (1 + state_arrays)
        for key, touched in rows
    ]
    blocks = b"".join(block(part) for part in (made[:2], made[2:]) if part)
    return head + struct.pack("<I", crc32c(head)) + blocks + bytes(8)


def tables():
    rows = [(1, 9), (2**64 - 1, 0), (7, 4)]
    save("table", "add", b"\x00\x0b" + table_snapshot(0, 0, rows))
    save("table", "adagrad", b"\x82\xff" + table_snapshot(1, 2, rows))
    save("table", "ftrl", b"\x80\x37" + table_snapshot(2, 4, rows))
    save("table", "twice", b"\x00\xff" + table_snapshot(0, 0, [(1, 9), (1, 9)]))
    save("table", "late", b"\x00\xff" + table_snapshot(0, 0, [(1, 10)]))
    save("table", "empty", b"\x00\xff" + table_snapshot(0, 0, []))


handshakes()
frames()
store()
texts()
safetensors()
idx()
tokenizers()
tokens()
ps()
libsvm()
liblinear()
tables()
