"""The list of studies: adding one is one entry of `STUDIES`.

`study.py` runs them and keeps their results; `study_page.py` writes docs/studies/NAME.md from each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Study:
    """A comparison, and what its page says about it."""

    title: str
    options: str
    """Of `metamirror compare`."""
    found: str
    """What came out, in words: the figures are in the table."""
    setting: str = ""
    """What its column and its line on docs/reproduce.md are called; without one it has none."""
    curves: str = ""
    """Whose convergence is drawn, and how: methods, then options of `metamirror convergence`."""
    earlier: bool = False
    """Made with maps of an earlier version: kept, but its command no longer gives this table."""


EVERY = "maml,metasgd,blockiaf,gradnet,metacurvature,metakfo,warpgrad,mtnet,ecml"
PICTURES = (
    "--ways 5 --queries 15 --steps 5 --tasks-per-step 2 --width 32 --optimizer adam "
    "--outer-lr 0.003 --schedule cosine --iterations 700 --validate-every 350 --val-tasks 100 "
    "--checkpoint-every 200 --search 0.1 --search-geometry 0.003,0.0005 "
    "--search-iterations 100 --jobs 2"
)
MINI = f"--data mini-imagenet --image-size 32 {PICTURES} --search-tasks 150 --test-tasks 600"


def one_step(search: str) -> str:
    """One inner step and fewer queries take less time, and more tasks are seen for it."""
    return (
        "--ways 5 --queries 5 --steps 1 --tasks-per-step 2 --width 32 --optimizer adam "
        f"--outer-lr 0.003 --schedule cosine --val-tasks 200 --search {search} "
        "--search-geometry 0.003,0.0005 --test-tasks 1000 --jobs 2"
    )


OMNIGLOT_ONE_STEP = (
    f"--data omniglot --image-size 28 {one_step('0.2')} --iterations 10000 --validate-every 2500 "
    "--checkpoint-every 1000 --search-iterations 300 --search-tasks 200 --shots 1"
)
ANCHORED = "gradnet:anchored=true:metric=kronecker:log_range=12"
QUADRATIC = f"{ANCHORED}:rho=0"
"""Its metric alone: what the network adds to it is the difference."""
CURVE = (
    "--data sinusoid --queries 15 --steps 1 --tasks-per-step 25 --iterations 3000 "
    "--optimizer adam --outer-lr 0.001 --validate-every 1000 --val-tasks 200 "
    "--checkpoint-every 1000 --test-tasks 1000 --search 0.01,0.03,0.1 --search-iterations 300 "
    "--search-tasks 200 --seeds 1 --jobs 2"
)
MAPS = "maml,blockiaf,gradnet,metacurvature,blockiaf:mixing=kronecker"
OTHERS = "metasgd,mtnet"
COMMON = (
    "--ways 5 --shots 1 --tasks-per-step 4 --width 32 --optimizer adam --schedule cosine "
    "--val-tasks 200 --test-tasks 1000 --jobs 2 --no-controls"
)
ONE_STEP = "--steps 1 --lr 0.2 --outer-lr 0.003 --queries 5"
FIVE_STEPS = "--steps 5 --lr 0.01 --outer-lr 0.001"
"""The step size and the outer learning rate that `train` has by default, and the paper."""


def seeds_of(methods: str, others: int = 1) -> str:
    """Three seeds for these methods."""
    return ",".join([str(others), *(f"{method}=3" for method in methods.split(","))])


def maps(tasks: str, iterations: int, methods: str, seeds: str = "3") -> str:
    """All defaults of the maps and one outer learning rate: do they lead without a search?"""
    every = iterations // 2 if iterations < 10_000 else 2_500
    return (
        f"{tasks} {COMMON} --iterations {iterations} --validate-every {every} "
        f"--checkpoint-every 500 --methods {methods} --seeds {seeds}"
    )


OMNIGLOT, SMALL = "--data omniglot --image-size 28", "--data mini-imagenet --image-size 32"
ABLATION = ",".join(
    ["maml", "metasgd"]
    + [
        f"blockiaf:parametrisation={parametrisation}:start={start}:scale={scale}:mixing={mixing}"
        for parametrisation in ("fan_in", "standard")
        for start in ("primal", "dual")
        for scale in ("wide", "bounded")
        for mixing in ("none", "kronecker")
    ]
)
DEVIATIONS = "What each deviation of the default map from the paper's is worth."

FEATURES = (
    "--data arrays:features.npz --model linear --adapts head --norm inductive --vectorize True "
    "--ways 5 --shots 1 --queries 15 --steps 5 --lr 1 --tasks-per-step 32 --optimizer adam "
    "--outer-lr 0.001 --schedule cosine --val-tasks 200 --test-tasks 1000 --jobs 2 --no-controls "
    "--iterations 1875 --validate-every 625 --checkpoint-every 625"
)
"""features.npz is what `metamirror embed` writes of miniImageNet with EfficientNet-lite0."""

STUDIES = {
    "omniglot-maps-one-step": Study(
        "Omniglot, 5-way 1-shot, one step",
        maps(f"{OMNIGLOT} {ONE_STEP}", 5000, f"{MAPS},{OTHERS}", seeds_of(MAPS)),
        "Every learned geometry is ahead of MAML. MetaCurvature, gradnet and blockIAF with mixing "
        "share the lead; the default blockIAF is between them and MAML. Nothing was searched.",
        setting="Omniglot, K = 1",
    ),
    "omniglot-maps-five-steps": Study(
        "Omniglot, 5-way 1-shot, five steps",
        maps(f"{OMNIGLOT} {FIVE_STEPS} --queries 5", 5000, "maml,blockiaf", seeds="1"),
        "With the paper's five steps and its step size, blockIAF is ahead of MAML. Its first step "
        "goes further than all steps of MAML together. Its loss before adaptation is not lower.",
        setting="Omniglot, K = 5",
        curves="maml,blockiaf --tasks 1000",
    ),
    "mini-imagenet-features": Study(
        "miniImageNet, features of EfficientNet-lite0, 5-way 1-shot, five steps",
        f"{FEATURES} --methods maml,metasgd,mtnet,warpgrad,metacurvature,metakfo,ecml,blockiaf "
        "--seeds 3",
        "A linear head on 1,280 frozen features, 60,000 tasks. blockIAF, WarpGrad and MT-net are "
        "ahead of MAML by less than a point. MetaCurvature and MetaKFO, whose factors have 1.6 "
        "million numbers, fit the train classes and are far behind. The step size is the best of "
        "0.1, 1 and 5 for MAML on validation tasks after 4,800 training tasks. The network was "
        "pretrained on ImageNet, whose classes include these; `metamirror embed --backbone "
        "lite0.onnx:mean=0.498:std=0.502 --data mini-imagenet --image-size 84 --out features.npz` "
        "writes its features.",
        setting="miniImageNet features, K = 5",
    ),
    "mini-imagenet-maps-five-steps": Study(
        "miniImageNet at 32x32, 5-way 1-shot, five steps",
        maps(f"{SMALL} {FIVE_STEPS} --queries 15", 10_000, "maml,blockiaf,metasgd"),
        "Three seeds by the paper's number of steps and its step size.",
        setting="miniImageNet, K = 5",
    ),
    "omniglot-maps-ablation": Study(
        "Omniglot, parts of the map",
        maps(f"{OMNIGLOT} {ONE_STEP}", 1000, ABLATION),
        DEVIATIONS,
    ),
    "mini-imagenet-maps-ablation": Study(
        "miniImageNet, parts of the map",
        maps(f"{SMALL} {ONE_STEP}", 1000, ABLATION),
        DEVIATIONS,
    ),
    "mini-imagenet-1shot": Study(
        "miniImageNet at 32x32, 5-way 1-shot, five steps, older maps",
        f"{MINI} --shots 1 --methods {EVERY},blockiaf:variant=released "
        "--seeds 1,maml=2,metasgd=2,blockiaf=2,gradnet=2",
        "After so few tasks no mirror map is ahead of MAML. ANIL, which adapts the head alone, is "
        "the best row: what these runs lack is a body worth adapting. The loss before adaptation "
        "is lower than MAML's, as in the paper, but the steps bring it down more slowly.",
        curves="maml,metasgd,blockiaf,gradnet --tasks 1000",
        earlier=True,
    ),
    "omniglot-1shot": Study(
        "Omniglot, 5-way 1-shot, five steps, older maps",
        f"--data omniglot --image-size 28 {PICTURES} --search-tasks 100 "
        f"--test-tasks 1000 --shots 1 --methods {EVERY} --seeds 1",
        "After so few tasks MetaCurvature, MetaKFO and MetaSGD are ahead of MAML, and the mirror "
        "maps, with many more parameters, are behind it.",
        earlier=True,
    ),
    "mini-imagenet-1shot-one-step": Study(
        "miniImageNet at 32x32, 5-way 1-shot, one step, older maps",
        f"--data mini-imagenet --image-size 32 {one_step('0.1,0.2,0.4')} --validate-every 1000 "
        "--checkpoint-every 1000 --iterations 4000 --search-iterations 500 --search-tasks 400 "
        f"--shots 1 --methods {EVERY},{ANCHORED},{QUADRATIC},blockiaf:anchored=true,"
        "blockiaf:variant=released "
        f"--seeds 1,maml=3,metasgd=3,blockiaf=3,{ANCHORED}=3,{QUADRATIC}=3",
        "gradnet with a primal start and a Kronecker metric is ahead of MAML over three seeds. "
        "Most of that is the metric: without the network (`rho=0`) the map is not significantly "
        "worse. blockIAF with a dual start is level with MAML. Times include other work.",
        curves=f"maml,metasgd,metakfo,blockiaf,{ANCHORED} --tasks 1000 --steps 5",
        earlier=True,
    ),
    "omniglot-1shot-one-step": Study(
        "Omniglot, 5-way 1-shot, one step, older maps",
        f"{OMNIGLOT_ONE_STEP} --methods maml,metasgd,metacurvature,{ANCHORED},blockiaf --seeds 1",
        "MetaCurvature and gradnet with a primal start share the lead. blockIAF with a dual start "
        "collapsed to chance: its map moved the start until the network was dead. The primal "
        "start, now the default, prevents that.",
        earlier=True,
    ),
    "omniglot-1shot-one-step-others": Study(
        "Omniglot, 5-way 1-shot, one step, older maps: the other methods",
        f"{OMNIGLOT_ONE_STEP} --methods maml,metakfo,blockiaf:anchored=true,ecml,mtnet,warpgrad,"
        "gradnet --seeds 1 --no-controls",
        "MetaKFO leads. blockIAF with a primal start does not collapse, and is ahead of MAML. "
        "These runs were made on another machine: compare each row with the MAML of its own table.",
        earlier=True,
    ),
    "sinusoid-5shot": Study(
        "Sinusoid, 5-shot, one step, older maps",
        f"{CURVE} --shots 5 --methods {EVERY}",
        "Every learned geometry is far ahead of MAML. Constant Kronecker matrices (MetaKFO, "
        "MetaCurvature) are best; the mirror maps are behind MetaSGD.",
        earlier=True,
    ),
    "sinusoid-10shot": Study(
        "Sinusoid, 10-shot, one step, older maps",
        f"{CURVE} --shots 10 --methods {EVERY}",
        "The order is that of five shots: constant Kronecker matrices first, then MetaSGD and "
        "WarpGrad, then the mirror maps, then MAML.",
        earlier=True,
    ),
    "mini-imagenet-5shot": Study(
        "miniImageNet at 32x32, 5-way 5-shot, one step, older maps",
        f"--data mini-imagenet --image-size 32 {one_step('0.2')} --validate-every 500 "
        "--checkpoint-every 500 --iterations 1000 --search-iterations 100 --search-tasks 200 "
        f"--shots 5 --methods maml,metasgd,metacurvature,blockiaf,{ANCHORED} --seeds 1",
        "gradnet with a primal start and MetaCurvature, which mix the entries of a gradient, are "
        "far ahead of MAML. MetaSGD and blockIAF with a dual start are not.",
        earlier=True,
    ),
}
