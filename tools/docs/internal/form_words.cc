#include "tools/docs/internal/form_words.h"

#include <algorithm>
#include <utility>

namespace weft::docs::internal {
namespace {

constexpr int kSide = 4;     // numbers of samples, positions, layers and features in the pictures
constexpr int kExperts = 4;  // columns of the experts, after those that all ranks have

const Form kAll[] = {
    {"data",
     "Data parallel",
     {{"dp", 4}},
     0,
     "Every rank has the whole model and a share of the batch. Gradients are averaged. On one "
     "host, weights and optimizer state exist once, in shared memory, and each rank updates a "
     "share of them.",
     "Li and others: PyTorch Distributed: Experiences on accelerating data parallel training, 2020",
     "Ψ weights, Ψ gradients, the whole state; activations of its samples",
     "2 Ψ (W-1)/W of gradients; on one host it reads Ψ (W-1)/W instead",
     "Begin with it, if the model and its state fit.",
     "engine/data_parallel.h"},
    {"zero-1",
     "ZeRO-1",
     {{"fsdp", 4}},
     1,
     "Data parallel, but each rank has optimizer state (and master weights) for a share of "
     "the weights only.",
     "Rajbhandari, Rasley, Ruwase, He: ZeRO: Memory optimizations toward training trillion "
     "parameter models, 2020",
     "Ψ weights, Ψ gradients, 1/W of the state",
     "2 Ψ (W-1)/W: gradients to the rank that updates, weights back",
     "It is for optimizers with much state. Its traffic is that of data parallel.",
     "engine/sharded.h"},
    {"zero-2",
     "ZeRO-2",
     {{"fsdp", 4}},
     2,
     "As ZeRO-1, and a gradient stays only on the rank that updates its weights.",
     "as ZeRO-1",
     "Ψ weights, 1/W of gradients and of the state",
     "2 Ψ (W-1)/W",
     "It is for models whose weights fit, but whose gradients do not.",
     "engine/sharded.h"},
    {"zero-3",
     "ZeRO-3",
     {{"fsdp", 4}},
     3,
     "Each rank keeps a share of every block. It gathers the whole block (light) to compute "
     "with it, in forward and again in backward.",
     "as ZeRO-1; Zhao and others: PyTorch FSDP: Experiences on scaling fully sharded data "
     "parallel, 2023",
     "1/W of weights, gradients and state; the blocks that it computes with",
     "3 Ψ (W-1)/W; nothing on one host with shared weights, where gradients are read in place",
     "It is for models that fit on all ranks together, but not on one rank.",
     "engine/sharded.h"},
    {"hybrid",
     "Hybrid sharding",
     {{"dp", 2}, {"fsdp", 2}},
     3,
     "ZeRO-3 within each group of ranks (fsdp, within a host). The groups average the "
     "gradients of their shards (dp, between hosts).",
     "as ZeRO-3",
     "1/F of weights, gradients and state; the blocks that it computes with",
     "3 Ψ (F-1)/F over fsdp; 2 (Ψ/F) (D-1)/D over dp",
     "It is for hosts with slow links between them.",
     "engine/sharded.h"},
    {"tensor",
     "Tensor parallel",
     {{"tp", 4}},
     0,
     "Each rank has a part of every layer: columns of one matrix, the matching rows of the "
     "next one, some attention heads, and a part of the vocabulary. Partial results are "
     "summed over the ranks twice in each block. With sequence parallelism, each of these "
     "all-reduces becomes a reduce-scatter and an all-gather over positions, and the layers "
     "between them are split too.",
     "Shoeybi and others: Megatron-LM: Training multi-billion parameter language models using "
     "model parallelism, 2019; Korthikanti and "
     "others: Reducing activation recomputation in large transformer models, 2022",
     "Ψ/W weights, gradients, state; 1/W of the activations within layers; the whole "
     "activations between layers, or 1/W of them with sequence parallelism",
     "8 b s h (W-1)/W for each block: two all-reduces of activations in forward, two in "
     "backward",
     "It is for wide layers over fast links.",
     "parallel/tensor/linear.h"},
    {"context",
     "Context parallel",
     {{"cp", 4}},
     0,
     "Each rank has some positions of every sequence. Attention has two methods. Ring: keys "
     "and values pass by every rank; on one host, ranks read them in place. Each rank has an "
     "early and a late chunk of positions, so that all ranks have equal work under a causal "
     "mask. Heads: two all-to-alls give each rank all positions of some heads, and back. "
     "Dropout drops the same elements as in one process.",
     "Liu, Zaharia, Abbeel: Ring attention with blockwise transformers for near-infinite context, "
     "2023; Jacobs and others: DeepSpeed "
     "Ulysses, 2023",
     "Ψ weights, gradients, state; 1/W of activations",
     "ring: 2 b s h_kv (W-1)/W for each block in forward (3/4 of it under a causal mask); in "
     "backward as much again, and the gradients of keys and values; heads: 8 b s h (W-1)/W² "
     "for each block, in forward and backward together; both: gradients of all weights, as "
     "data parallel",
     "It is for sequences whose activations do not fit.",
     "parallel/context/attention.h"},
    {"experts",
     "Expert parallel",
     {{"ep", 4}},
     0,
     "Several MLPs, the experts, replace the MLP of a block. Each expert is on one rank (the "
     "columns on the right). A router sends every token to a few of them. All other layers "
     "are data parallel.",
     "Shazeer and others: Outrageously large neural networks: the sparsely-gated "
     "mixture-of-experts layer, 2017; Lepikhin and others: "
     "GShard, "
     "2020",
     "1/W of the experts' weights, gradients, state; the rest whole",
     "4 k b s h (W-1)/W for each layer of experts, if tokens are spread evenly: to the "
     "experts and back, in forward and in backward; gradients of all other weights, as data "
     "parallel",
     "It is for more weights at the same computation for each token.",
     "parallel/experts/mixture.h"},
    {"pipeline",
     "Pipeline parallel",
     {{"pp", 4}},
     0,
     "Each rank has some of the layers. Micro-batches pass through the ranks one after the "
     "other ([schedules](pipelines.md)).",
     "Huang and others: GPipe: Efficient training of giant neural networks using pipeline "
     "parallelism, 2019",
     "Ψ/W weights, gradients, state; activations of as many micro-batches as the schedule holds",
     "2 b s h at each border of two ranks: half of it in forward, half in backward",
     "It is for models of many layers over slow links.",
     "parallel/pipeline/pipeline.h"},
    {"dp-tp",
     "Data x tensor",
     {{"dp", 2}, {"tp", 2}},
     0,
     "Two replicas of a model, each divided over two ranks. Ranks along the last axis are "
     "neighbors and share a host.",
     "as its parts",
     "Ψ/T weights, gradients, state",
     "as tensor parallel over tp, for the samples of the replica; 2 (Ψ/T) (D-1)/D over dp",
     "It is for several hosts of several ranks.",
     "parallel/compose/parallelize.h"},
    {"pp-dp-tp",
     "Pipeline x data x tensor",
     {{"pp", 2}, {"dp", 2}, {"tp", 2}},
     0,
     "All three: pp divides the layers, dp the samples, tp the features.",
     "Narayanan and others: Efficient large-scale language model training on GPU clusters using "
     "Megatron-LM, 2021",
     "Ψ/(P T) weights, gradients, state",
     "as its parts, each for its share of the model",
     "It is for the largest models.",
     "parallel/compose/parallelize.h"},
};

int share_of(int index, int parts) { return index * parts / kSide; }

// One column of a layer, with ZeRO and the splits of the form. `sharded_from`: the ZeRO stage from
// which on this kind of data is sharded.
Cell cell(const Form& form, const plan::MeshLayout& mesh, int rank, int layer, int column,
          int sharded_from) {
  if (share_of(layer, mesh.size("pp")) != mesh.coordinate(rank, "pp")) return Cell::kNone;
  if (column >= kSide) {
    return (column - kSide) * mesh.size("ep") / kExperts == mesh.coordinate(rank, "ep")
               ? Cell::kKept
               : Cell::kNone;
  }
  if (share_of(column, mesh.size("tp")) != mesh.coordinate(rank, "tp")) return Cell::kNone;
  const bool mine = share_of(column, mesh.size("fsdp")) == mesh.coordinate(rank, "fsdp");
  if (mine || form.zero < sharded_from) return Cell::kKept;
  return sharded_from == 3 ? Cell::kFetched : Cell::kNone;
}

}  // namespace

const char* const kForms = R"(# Forms of parallelism

This page describes every form of `weft/parallel`: what each rank holds, what it computes and what
it sends. `./dev docs` generates the page, and draws the pictures from the coordinates of a mesh.
`weft plan show` shows any mesh. [choose-parallelism.md](choose-parallelism.md) says which form to
choose, and [pipelines.md](pipelines.md) describes the schedules of pipelines.

Every form gives the result of one process on the whole batch. `parallelize(model, plan, mesh)`
(`weft/parallel/compose/parallelize.h`) combines dp, fsdp, tp, pp, cp (sequences) and ep (experts)
by the sizes of a mesh.

- W ranks; Ψ parameters; b samples of s positions and h features; k experts for each token
- h_kv: the width of all heads of keys and values together
- D, F, T, P: the sizes of the axes dp, fsdp, tp and pp
- the last column of the table: elements that one rank sends in a step, where b is the batch of the
  rank's replica. The headers state the same numbers, and their tests count them

In the pictures, each rank is a card with four squares. The first one is its part of the batch, with
samples downwards and positions to the right. The others are its parts of weights, gradients and
optimizer state, with layers downwards and features to the right. Full color: the rank keeps it.
Light color: the rank gathers it only while it computes with it.
)";

const char* const kAfterwardsForms = R"(
## Choosing

Begin with data parallel.

| does not fit | form |
| --- | --- |
| optimizer state, gradients | ZeRO-1 or ZeRO-2, with the traffic of data parallel |
| weights | ZeRO-3; over fast links also tensor parallel |
| activations | activation checkpointing (`weft/parallel/recompute`), selective before full |
| one sequence | context parallel |

Over slow links, use pipeline parallel or hybrid sharding. Put the axis with the most traffic last
in a mesh, so that its ranks share a host. [choose-parallelism.md](choose-parallelism.md) has the
whole decision table. `weft/plan/model/activations.h` counts activations.
)";

std::span<const Form> forms() { return kAll; }

std::vector<Grid> grids_of(const Form& form, const plan::MeshLayout& mesh, int rank) {
  Grid batch{"batch", kSide, kSide, {}};
  const int replicas = mesh.size("dp") * mesh.size("fsdp") * mesh.size("ep");
  const int replica =
      (mesh.coordinate(rank, "dp") * mesh.size("fsdp") + mesh.coordinate(rank, "fsdp")) *
          mesh.size("ep") +
      mesh.coordinate(rank, "ep");
  for (int sample = 0; sample < kSide; ++sample) {
    for (int position = 0; position < kSide * 2; ++position) {
      // With context parallelism, a rank holds an early and a late chunk of the sequence.
      const int chunk = position * mesh.size("cp") / kSide, last = 2 * mesh.size("cp") - 1;
      const bool here = std::min(chunk, last - chunk) == mesh.coordinate(rank, "cp");
      batch.cells.push_back(share_of(sample, replicas) == replica && here ? Cell::kKept
                                                                          : Cell::kNone);
    }
  }
  batch.columns = kSide * 2;
  std::vector<Grid> grids{std::move(batch)};
  const int columns = kSide + (mesh.size("ep") > 1 ? kExperts : 0);
  constexpr std::pair<const char*, int> kKinds[] = {{"weights", 3}, {"gradients", 2}, {"state", 1}};
  for (const auto& [title, sharded_from] : kKinds) {
    Grid grid{title, kSide, columns, {}};
    for (int layer = 0; layer < kSide; ++layer) {
      for (int column = 0; column < columns; ++column)
        grid.cells.push_back(cell(form, mesh, rank, layer, column, sharded_from));
    }
    grids.push_back(std::move(grid));
  }
  return grids;
}

}  // namespace weft::docs::internal
