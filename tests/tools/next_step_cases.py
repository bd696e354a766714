"""Command lines that fail, and what each error names: what is wrong, where, what to try next."""

import dataclasses
import pathlib
import struct
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Case:
    """One error.

    Attributes:
        line: the command line that fails. The current directory is that of `prepare_folder`.
        found: what the message contains about what is wrong, and where.
        next: the part of the message that names the next thing to try.
        fix: a command line that does so, in which names take the place of placeholders such as
            MIRROR; it must succeed.
        fixed_status: the exit status of `fix`.
        works_then: whether `line` succeeds after `fix`.
        damage: what is done to the store first.
    """

    line: str
    found: tuple[str, ...]
    next: str
    fix: str = ""
    fixed_status: int = 0
    works_then: bool = False
    damage: Callable[[pathlib.Path], None] | None = None


def _flip(path: pathlib.Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def _newest(folder: pathlib.Path) -> pathlib.Path:
    """The table or segment that the last save has written."""
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def damage_payload(folder: pathlib.Path) -> None:
    segment = _newest(folder / "store/segments")
    _flip(segment, segment.read_bytes().index(struct.pack("<4f", 0, 2, 4, 6)))  # norm of step 200


def remove_segment(folder: pathlib.Path) -> None:
    _newest(folder / "store/segments").unlink()


def damage_table(folder: pathlib.Path) -> None:
    table = _newest(folder / "store/tables")
    table.write_bytes(bytes(table.stat().st_size))


def damage_root(folder: pathlib.Path) -> None:
    _flip(min((folder / "store/roots").iterdir()), 60)  # the newest is the first by name


def remove_roots(folder: pathlib.Path) -> None:
    for root in (folder / "store/roots").iterdir():
        root.unlink()


def damage_identity(folder: pathlib.Path) -> None:
    _flip(folder / "store/CAIRN", 20)


def cut_file(folder: pathlib.Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1])


COMMAND_LINES = [
    Case("kv-dump", ("a verb is missing",), "run kv-dump --help to list the verbs",
         fix="kv-dump --help"),
    Case("kv-dump stesp store", ("'stesp' is not a verb",), "did you mean steps?",
         fix="kv-dump steps store"),
    Case("kv-dump step", ("'step' is not a verb",), "did you mean steps?",
         fix="kv-dump steps store"),
    Case("kv-admin imprt store", ("'imprt' is not a verb",), "did you mean import?",
         fix="kv-admin import --help"),
    Case("kv-admin frobnicate", ("'frobnicate' is not a verb",),
         "the verbs are import, export, delete, tag, untag, policy, prune, compact, compression, "
         "rebuild, repair, rename, drop, graft, fork, merge, push, pull, mirror, check-storage"),
    Case("kv-bench svae", ("'svae' is not a verb",), "did you mean save?",
         fix="kv-bench save --help"),
    Case("kv-dump --colour", ("no option '--colour'",), "run kv-dump --help to list the options",
         fix="kv-dump --help"),
    Case("kv-dump --verison", ("no option '--verison'",), "did you mean --version?",
         fix="kv-dump --version"),
    Case("kv-dump steps store --jsno", ("no option '--jsno'",), "did you mean --json?",
         fix="kv-dump steps store --json"),
    Case("kv-dump show store norm --slcie=0", ("no option '--slcie'",), "did you mean --slice?",
         fix="kv-dump show store norm --slice=0"),
    Case("kv-admin prune store --frobnicate 3", ("no option '--frobnicate'",),
         "run kv-admin prune --help to list the options", fix="kv-admin prune --help"),
    Case("kv-dump steps store more", ("'more' is one argument too many",),
         "write kv-dump steps STORE", fix="kv-dump steps store"),
    Case("kv-dump show store", ("FQN is missing",),
         "write kv-dump show STORE[@STEP] FQN [--slice SLICE]", fix="kv-dump show store norm"),
    Case("kv-admin import store model.safetensors", ("--step is missing",),
         "write kv-admin import STORE --step N FILE...",
         fix="kv-admin import store --step 7 model.safetensors"),
    Case("kv-dump space store --depth x", ("--depth: 'x' is not a whole number",),
         "write one such as 100 (see kv-dump space --help)", fix="kv-dump space store --depth 100"),
    Case("kv-admin mirror store copy --interval x", ("--interval: 'x' is not a number",),
         "write one such as 0.5 (see kv-admin mirror --help)",
         fix="kv-admin mirror store copy --interval 0.5"),
    Case("kv-admin import store --step 7 weights --format fh", ("--format: 'fh'", "not accepted"),
         "write hf (see kv-admin import --help)",
         fix="kv-admin import store --step 7 weights --format hf"),
    Case("kv-admin export store out.dcp --format dpc", ("--format: 'dpc'", "not accepted"),
         "did you mean dcp? (see kv-admin export --help)",
         fix="kv-admin export store out.dcp --format dcp"),
    Case("kv-dump --completion tcsh", ("--completion", "no completion for 'tcsh'"),
         "the shells are bash, zsh and fish (see kv-dump --help)",
         fix="kv-dump --completion fish"),
]

PATHS = [
    Case("kv-dump steps stroe", ("there is no store here", "file stroe"), "did you mean store?",
         fix="kv-dump steps store"),
    Case("kv-dump nothing-like-it", ("there is no store here", "file nothing-like-it"),
         "the stores in that directory: copy, other, store", fix="kv-dump store"),
    Case("kv-dump steps empty/absent", ("there is no store here", "file empty/absent"),
         "kv-admin import and kv-admin push create stores",
         fix="kv-admin push store empty/absent", works_then=True),
    Case("kv-dump steps not/there/at/all", ("there is no store here", "file not/there/at/all"),
         "there is no directory not"),
    Case("kv-dump steps empty", ("there is no store here", "file empty"),
         "kv-admin import and kv-admin push create stores",
         fix="kv-admin import empty --step 7 model.safetensors", works_then=True),
    Case("kv-dump runs", ("not a Cairn store", "file runs"),
         "the stores in that directory: runs/gpt", fix="kv-dump runs/gpt"),
    Case("kv-dump store/segments", ("not a Cairn store", "file store/segments"),
         "did you mean store?", fix="kv-dump store"),
    Case("kv-dump text.txt", ("a file and not a Cairn store", "file text.txt"),
         "the stores in that directory: copy, other, store", fix="kv-dump store"),
    Case("kv-dump keys weights", ("not a Cairn store", "file weights"),
         "run kv-admin import STORE --step N weights --format hf to import it",
         fix="kv-admin import new --step 7 weights --format hf"),
    Case("kv-dump model.safetensors", ("a file and not a Cairn store", "file model.safetensors"),
         "run kv-admin import STORE --step N model.safetensors to import it",
         fix="kv-admin import new --step 7 model.safetensors"),
    Case("kv-dump model.dcp", ("not a Cairn store", "file model.dcp"),
         "run kv-admin import STORE --step N model.dcp to import it",
         fix="kv-admin import new --step 7 model.dcp"),
    Case("kv-dump shards", ("not a Cairn store", "file shards"),
         "run kv-admin import STORE --step N shards/*.safetensors to import it",
         fix="kv-admin import new --step 7 shards/*.safetensors"),
    Case("kv-dump 's p a c e/stor'", ("there is no store here", "file s p a c e/stor"),
         "did you mean 's p a c e/store'?", fix="kv-dump 's p a c e/store'"),
    Case("kv-dump steps s3:/bucket", ('the address "s3:/bucket"',), "the form s3://BUCKET/PREFIX"),
    Case("kv-dump steps s4://bucket/runs", ('unknown kind of storage "s4:"',),
         "a path that contains ':' needs \"file:\" before it"),
    Case("kv-dump steps s3://bucket/runs", ("found no credentials", "s3://bucket/runs/CAIRN"),
         "set them, or choose a profile with AWS_PROFILE"),
    Case("kv-dump steps memory:run", ("'memory:run' is a store in the memory of one process",),
         "give the address of a directory or a bucket", fix="kv-dump steps store"),
    Case("kv-dump steps rados:pool", ('the address "rados:pool"',),
         "the form rados:POOL/NAMESPACE"),
    Case("kv-admin import store --step 7 modle.safetensors",
         ("cannot open the file", "file modle.safetensors"), "did you mean model.safetensors?",
         fix="kv-admin import store --step 7 model.safetensors"),
    Case("kv-admin import store --step 7 other-name.pt", ("cannot open the file", "other-name.pt"),
         "run ls . to list what exists", fix="ls ."),
    Case("kv-admin import store --step 7 weights", ("without .metadata", "file weights"),
         "or add --format hf to import a model",
         fix="kv-admin import store --step 7 weights --format hf"),
    Case("kv-admin import store --step 7 model.safetensors --format hf",
         ("the directory of a model", "file model.safetensors"), "omit --format to import it",
         fix="kv-admin import store --step 7 model.safetensors"),
    Case("kv-admin import store --step 7 text.txt", ("neither a safetensors file", "file text.txt"),
         "which are the files that can be imported"),
    Case("kv-admin import store --step 7 model.safetensors --rules absent.json",
         ("opening the rules", "file absent.json"), "run ls . to list what exists", fix="ls ."),
    Case("kv-admin import store --step 7 model.safetensors --rules text.txt",
         ("not a JSON list of rules", "file text.txt"), '[{"rename": "^model.", "to": ""}]',
         fix="""echo '[{"rename": "^model.", "to": ""}]' > text.txt""",
         works_then=True),
    Case("kv-admin check-storage absent", ("cannot create a directory", "file absent/cairn-check"),
         "run mkdir -p absent first", fix="mkdir -p absent", works_then=True),
    Case("kv-admin check-storage text.txt", ("Not a directory", "file text.txt/cairn-check"),
         "text.txt is a file and not a directory"),
    Case("kv-dump report store -o absent/x.html", ("cannot create the report", "absent/x.html"),
         "run mkdir -p absent first", fix="mkdir -p absent", works_then=True),
    Case("kv-bench open --dir absent --chunks 10", ("must be a directory", "file absent"),
         "run mkdir -p absent", fix="mkdir -p absent", works_then=True),
]

STEPS_AND_KEYS = [
    Case("kv-dump keys store@101", ("no such step; the store has 100, 200", "step 101"),
         "kv-dump steps store lists all steps", fix="kv-dump steps store"),
    Case("kv-admin delete store 101", ("no such step; the store has 100, 200", "step 101"),
         "kv-dump steps store lists all steps", fix="kv-dump steps store"),
    Case("kv-dump keys store@bets", ("no step has the tag 'bets'", "file store"),
         "the store has best", fix="kv-dump keys store@best"),
    Case("kv-dump keys store@", ("'' is neither a step nor a tag",),
         "only STORE for the latest step", fix="kv-dump keys store"),
    Case("kv-dump keys store@99999999999999999999", ("exceeds the largest step number",),
         "kv-dump steps lists the steps of a store", fix="kv-dump steps store"),
    Case("kv-dump steps store@100", ("steps takes a store without a step",), "omit @100",
         fix="kv-dump steps store"),
    Case("kv-dump store@100", ("a store without a step",), "try kv-dump keys store@100",
         fix="kv-dump keys store@100"),
    Case("kv-dump show store nrom", ("step 200 has no such key",), "did you mean norm? (key nrom)",
         fix="kv-dump show store norm"),
    Case("kv-dump show store zzzzzz", ("step 200 has no such key",),
         "see kv-dump keys store@200 (key zzzzzz)", fix="kv-dump keys store@200"),
    Case("kv-dump show store layers", ("no such key, but 2 keys below it",),
         "see kv-dump keys store@200 layers (key layers)", fix="kv-dump keys store@200 layers"),
    Case("kv-dump history store layers.0.wieght", ("no such tensor", "step 200"),
         "similar keys: layers.0.weight, layers.1.weight",
         fix="kv-dump history store layers.0.weight"),
    Case("kv-dump history store zzzzzz", ("no such tensor", "key zzzzzz"),
         "kv-dump keys store@200 lists all keys", fix="kv-dump keys store@200"),
    Case("kv-dump keys store 'a['", ("pattern 'a['", "without its ']'"),
         "write '?' for the character itself", fix="kv-dump keys store 'a?'"),
    Case("kv-dump keys store ''", ("a key pattern is empty",), "'**' matches every key",
         fix="kv-dump keys store '**'"),
    Case("kv-dump show store norm --slice 9", ("slice '9': out of range", "size 4"),
         "write an index from -4 to 3", fix="kv-dump show store norm --slice -4"),
    Case("kv-dump show store norm --slice ::2", ("only a step of 1",), "write BEGIN:END",
         fix="kv-dump show store norm --slice 0:2"),
    Case("kv-dump show store norm --slice 0:1,0:1", ("2 dimensions, but the tensor has 1",),
         "write at most 1 ranges", fix="kv-dump show store norm --slice 0:1"),
    Case("kv-dump show store norm --slice x", ("slice 'x': not a number",),
         "write a slice like 0:4,:,-1", fix="kv-dump show store norm --slice 0:4"),
    Case("kv-dump diff store@100 copy@200", ("store and copy are two stores",),
         "copy the steps of one to the other with kv-admin push copy store",
         fix="kv-admin push copy store"),
    Case("kv-dump steps store --where 'nam>0'", ("'nam>0' is not a condition",),
         "with the fields min, max, mean, absmax, zeros, nan, inf, count, bytes, chunks",
         fix="kv-dump steps store --where 'nan>0'"),
    Case("kv-dump verify store --max-rate 0", ("at least one byte per second",),
         "write a rate such as 100M, and the store without a step",
         fix="kv-dump verify store --max-rate 100M"),
]

CHANGES = [
    Case("kv-admin import store --step 100 model.safetensors", ("already exists", "step 100"),
         "--overwrite replaces it",
         fix="kv-admin import store --step 100 model.safetensors --overwrite"),
    Case("kv-admin fork store@100 --into 200", ("already exists", "step 200"),
         "--overwrite replaces it", fix="kv-admin fork store@100 --into 200 --overwrite"),
    Case("kv-admin push other@100 store", ("other contents", "step 100"), "--overwrite replaces it",
         fix="kv-admin push other@100 store --overwrite"),
    Case("kv-admin import store@7 --step 7 model.safetensors", ("not after the store",),
         "write the step as --step 7, not after the store",
         fix="kv-admin import store --step 7 model.safetensors"),
    Case("kv-admin import store --step 7 model.safetensors --dtype flot16",
         ("'flot16' is not a dtype",), "write float32, float16, bfloat16 or float64",
         fix="kv-admin import store --step 7 model.safetensors --dtype float16"),
    Case("kv-admin import store --step 7 model.safetensors --rename norm", ("--rename 'norm'",),
         "write REGEX=TEXT",
         fix="kv-admin import store --step 7 model.safetensors --rename norm=scale"),
    Case("kv-admin import store --step 7 model.safetensors --tag 'a b'",
         ("'a b' cannot be a tag",), "and not only digits",
         fix="kv-admin import store --step 7 model.safetensors --tag a_b"),
    Case("kv-admin export store model.safetensors", ("the file exists", "file ./model.safetensors"),
         "give --overwrite to replace it (file ./model.safetensors)",
         fix="kv-admin export store model.safetensors --overwrite"),
    Case("kv-admin export store out.safetensors zzz", ("no tensor matches", "step 200"),
         "kv-dump keys store@200 lists all keys", fix="kv-dump keys store@200"),
    Case("kv-admin export store out --format hf", ("add cairn.hf.describe(model)", "'__weights__'"),
         "--format safetensors exports any step (step 200)",
         fix="kv-admin export store out --format safetensors"),
    Case("kv-admin export store out --format hf norm", ("exports a complete model",),
         "omit the patterns, or give --format safetensors",
         fix="kv-admin export store out norm --format safetensors"),
    Case("kv-admin export store out.safetensors --shard-size 0", ("must not be 0",),
         "write a size such as 2GB", fix="kv-admin export store out.safetensors --shard-size 2GB"),
    Case("kv-admin export store out.safetensors --shard-size x", ("'x' is not a size",),
         "write 65536, 512M, 1.5GiB or 5GB",
         fix="kv-admin export store out.safetensors --shard-size 512M"),
    Case("kv-admin export store out.safetensors --sparse", ("--sparse needs",), "--since STEP",
         fix="kv-admin export store out.safetensors --sparse --since 100"),
    Case("kv-admin prune store", ("the store has no policy",),
         "state which steps remain, for example with --keep-last 3; the store has no policy "
         "(kv-admin policy)", fix="kv-admin prune store --keep-last 3"),
    Case("kv-admin prune store@100 --keep-last 3", ("prune chooses among all steps",),
         "write store without a step", fix="kv-admin prune store --keep-last 3"),
    Case("kv-admin prune store --keep-best loss", ("'loss' does not name the best steps",),
         "write METRIC:N for the lowest values or METRIC:N:max for the highest",
         fix="kv-admin prune store --keep-best loss:1"),
    Case("kv-admin policy store --none --keep-last 3", ("--none removes the policy",),
         "omit it to set one", fix="kv-admin policy store --keep-last 3"),
    Case("kv-admin compression store --on --off", ("--on and --off exclude each other",),
         "give one of them", fix="kv-admin compression store --on"),
    Case("kv-admin compact store@100", ("concerns all steps",), "write store without a step",
         fix="kv-admin compact store"),
    Case("kv-admin untag store@100 best", ("the tag 'best' is that of step 200",),
         "run kv-admin untag store best (step 100, file store)", fix="kv-admin untag store best"),
    Case("kv-admin tag store prod", ("name the step",), "kv-admin tag STORE@STEP NAME",
         fix="kv-admin tag store@100 prod"),
    Case("kv-admin merge store@100 --into 7", ("at least two steps",), "name another one",
         fix="kv-admin merge store@100,200 --into 7"),
    Case("kv-admin merge store@100,200 --into 7 --weights 1", ("1 weights for 2 steps",),
         "give one weight for each step",
         fix="kv-admin merge store@100,200 --into 7 --weights 1,2"),
    Case("kv-admin merge store --into 7", ("'store' names no step",), "write STORE@STEP",
         fix="kv-admin merge store@100 store@200 --into 7"),
    Case("kv-admin rename store zzz=y --into 7", ("no key of the step matches", "key zzz"),
         "kv-dump keys store lists all keys", fix="kv-dump keys store"),
    Case("kv-admin rebuild store", ("there is nothing to rebuild", "file store"),
         "kv-dump verify store checks the payload (file store)", fix="kv-dump verify store"),
    Case("kv-bench digest --dir . --bytes 0", ("--bytes must not be 0",),
         "give a size such as 64MiB",
         fix="kv-bench digest --dir . --bytes 1MiB --repeat 1"),
]

DAMAGE = [
    Case("kv-dump show store norm", ("does not match its digest", "key norm, step 200"),
         "run kv-dump verify store to list all damage, and kv-admin repair store --from MIRROR to "
         "replace it from a mirror", fix="kv-admin repair store --from copy", works_then=True,
         damage=damage_payload),
    Case("kv-admin merge store@100,200 --into 7", ("does not match its digest", "file store/segm"),
         "run kv-dump verify store to list all damage, and kv-admin repair store --from MIRROR to "
         "replace it from a mirror", fix="kv-dump verify store", fixed_status=1,
         damage=damage_payload),
    Case("kv-dump show store norm", ("No such file", "file store/segments/"),
         "run kv-dump verify store to list all damage, and kv-admin repair store --from MIRROR to "
         "replace it from a mirror", fix="kv-admin repair store --from copy", works_then=True,
         damage=remove_segment),
    Case("kv-dump keys store@200", ("the table", "file store/tables/"),
         "run kv-admin rebuild store to recover what is left, and then kv-admin pull MIRROR store "
         "if a mirror has what is lost",
         fix="kv-admin rebuild store; kv-admin pull copy store --overwrite", works_then=True,
         damage=damage_table),
    Case("kv-dump steps store", ("the root is damaged", "file store/roots/"),
         "run kv-admin rebuild store", fix="kv-admin rebuild store", works_then=True,
         damage=damage_root),
    Case("kv-admin delete store 100", ("roots of this store are missing", "file store"),
         "run kv-admin rebuild store", fix="kv-admin rebuild store", works_then=True,
         damage=remove_roots),
    Case("kv-dump store", ("CAIRN does not match its checksum", "file store/CAIRN"),
         "restore it from a backup of the store, or run kv-admin pull MIRROR NEW_STORE to copy the "
         "steps of a mirror", fix="kv-admin pull copy new", damage=damage_identity),
    Case("kv-admin import new --step 7 model.safetensors", ("file model.safetensors",),
         "the file is damaged or incomplete: get it again from its source",
         fix="cp backup.safetensors model.safetensors", works_then=True, damage=cut_file),
]
