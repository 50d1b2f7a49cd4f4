"""The models and layouts of the bench: keys of a recipe, and the same as a scenario of weft plan
predict."""

import dataclasses

VOCABULARY = 257  # of the tokenizer "bytes"
SEED = 1


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    keys: tuple  # of the recipe
    scenario: dict  # its sizes
    batch: int  # samples of a step over all ranks
    batches: tuple  # samples of the profile's measurements
    # Batch normalization takes its statistics over the samples that a rank computes at once, so
    # losses depend on their number.
    normalizes: bool = False
    unsupported: tuple = ()  # axes that the model does not have
    cuts: dict = dataclasses.field(default_factory=dict)  # by number of stages


def gpt(name, layers, width, heads, batch, **more):
    sizes = {"layers": layers, "width": width, "heads": heads, "sequence": 128}
    keys = ['model.name="gpt"', *(f"model.{key}={value}" for key, value in sizes.items())]
    keys += ['data.name="text"', 'data.tokenizer="bytes"', "data.validation=0.001"]
    scenario = {"family": "gpt", "layers": layers, "hidden": width, "heads": heads}
    scenario |= {"sequence": 128, "vocab": VOCABULARY, "dropout": 0}
    return Model(name, tuple(keys), scenario, batch, **more)


def image_model(name, keys, scenario, **more):
    scenario = {"family": name, "image": 28, "channels": 1, "classes": 10, **scenario}
    return Model(name, (f'model.name="{name}"', *keys, 'data.name="shapes"'), scenario, **more)


MODELS = (
    gpt("gpt-128", 4, 128, 4, 16, batches=(1, 2, 4, 8, 16), cuts={2: [3], 4: [2, 3, 4]}),
    gpt("gpt-384", 6, 384, 6, 8, batches=(1, 2, 4, 8), cuts={2: [4], 4: [2, 4, 6]}),
    image_model(
        "resnet18",
        ['model.stem="7x7"'],
        {"small_stem": False},
        batch=64,
        batches=(8, 16, 32, 64),
        normalizes=True,
        unsupported=("tp", "cp"),
    ),
    image_model(
        "vit",
        ["model.layers=4", "model.width=128", "model.heads=4", "model.patch=4"],
        {"layers": 4, "hidden": 128, "heads": 4, "patch": 4, "dropout": 0},
        batch=64,
        batches=(8, 16, 32, 64),
        unsupported=("cp",),
        cuts={2: [3], 4: [2, 3, 4]},
    ),
)


@dataclasses.dataclass(frozen=True)
class Layout:
    ranks: int
    axes: dict
    micro_batches: int = 1
    zero_stage: int = 0

    @property
    def name(self):
        text = " x ".join(f"{axis} {size}" for axis, size in self.axes.items())
        return text + (f", ZeRO-{self.zero_stage}" if self.zero_stage else "")

    @property
    def stages(self):
        return self.axes.get("pp", 1)

    @property
    def replicas(self):
        return self.axes.get("dp", 1) * self.axes.get("fsdp", 1)


LAYOUTS = (
    Layout(2, {"dp": 2}),
    Layout(2, {"fsdp": 2}, zero_stage=1),
    Layout(2, {"fsdp": 2}, zero_stage=3),
    Layout(2, {"tp": 2}),
    Layout(2, {"cp": 2}),
    Layout(2, {"pp": 2}, micro_batches=4),
    Layout(4, {"dp": 4}),
    Layout(4, {"fsdp": 4}, zero_stage=3),
    Layout(4, {"dp": 2, "tp": 2}),
    Layout(4, {"fsdp": 2, "tp": 2}, zero_stage=3),
    Layout(4, {"pp": 2, "dp": 2}, micro_batches=4),
    Layout(4, {"pp": 4}, micro_batches=8),
)


def layouts_of(model):
    return [one for one in LAYOUTS if not set(one.axes) & set(model.unsupported)]


def recipe_of(model, text_file):
    """The keys that all layouts of the model share."""
    keys = [*model.keys, f"train.batch={model.batch}", f"train.seed={SEED}", "train.epochs=100000"]
    keys += ['optimizer.name="adamw"', "optimizer.lr=0.001", 'schedule.name="constant"']
    keys += ["train.eval_every=0", "train.checkpoint_every=0", "train.checkpoint_minutes=0"]
    if 'data.name="text"' in model.keys:
        keys.append(f'data.file="{text_file}"')
    return keys


def keys_of(model, layout):
    """The keys that make the trainer use the layout."""
    axes = {"dp": 1, **layout.axes}
    keys = [f"parallel.{axis}={size}" for axis, size in axes.items()]
    keys.append(f"parallel.micro_batches={layout.micro_batches}")
    if layout.zero_stage:
        keys.append(f"parallel.zero_stage={layout.zero_stage}")
    if layout.stages > 1:
        keys.append('parallel.schedule="1f1b"')
        if cuts := model.cuts.get(layout.stages):
            keys.append(f"parallel.cuts={cuts}")
    return keys


def scenario_of(model, layout, cluster, profile):
    """The same for weft plan predict."""
    plan = {"dp": 1, **layout.axes, "zero_stage": layout.zero_stage, "global_batch": model.batch}
    plan["micro_batch"] = model.batch // layout.replicas // layout.micro_batches
    plan |= {"precision": "fp32", "optimizer": "adamw", "software": "weft"}
    if layout.stages > 1:
        plan |= {"schedule": "1f1b", "cuts": model.cuts.get(layout.stages, [])}
    return {
        "id": f"{model.name}, {layout.ranks} ranks, {layout.name}",
        "model": {**model.scenario, "profile": profile},
        "cluster": {"file": cluster},
        "plan": plan,
    }
