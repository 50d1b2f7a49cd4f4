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
     "Every rank has the whole model and a share of the batch; gradients are averaged. On one host "
     "weights and state exist once, in shared "
     "memory, and each rank updates a share of them.",
     "Li and others: PyTorch Distributed: Experiences on accelerating data parallel training, 2020",
     "Ψ weights, Ψ gradients, the whole state; activations of its samples",
     "2 Ψ (W-1)/W, of gradients; on one host it reads Ψ (W-1)/W",
     "It is the one to begin with: the model and its state fit.",
     "engine/data_parallel.h"},
    {"zero-1",
     "ZeRO-1",
     {{"fsdp", 4}},
     1,
     "Data parallel, with optimizer state (and masters) for a share of the weights on each rank.",
     "Rajbhandari, Rasley, Ruwase, He: ZeRO: Memory optimizations toward training trillion "
     "parameter models, 2020",
     "Ψ weights, Ψ gradients, 1/W of the state",
     "2 Ψ (W-1)/W: gradients to who updates, weights back",
     "It costs nothing beyond data parallel: for optimizers with much state.",
     "engine/sharded.h"},
    {"zero-2",
     "ZeRO-2",
     {{"fsdp", 4}},
     2,
     "ZeRO-1, and a gradient stays only where its weights are updated.",
     "as ZeRO-1",
     "Ψ weights, 1/W of gradients and of the state",
     "2 Ψ (W-1)/W",
     "It is for models whose weights fit, and little more.",
     "engine/sharded.h"},
    {"zero-3",
     "ZeRO-3",
     {{"fsdp", 4}},
     3,
     "Each rank keeps a share of every block, and fetches the whole block for as long as it "
     "computes (light), forward and again backward.",
     "as ZeRO-1; Zhao and others: PyTorch FSDP: Experiences on scaling fully sharded data "
     "parallel, 2023",
     "1/W of weights, gradients and state, and the blocks that compute",
     "3 Ψ (W-1)/W; on one host, with shared weights, nothing: gradients are read where they are",
     "It is for models that fit all ranks together and none alone.",
     "engine/sharded.h"},
    {"hybrid",
     "Hybrid sharding",
     {{"dp", 2}, {"fsdp", 2}},
     3,
     "ZeRO-3 in each of several groups (fsdp, within a host), which average their shards' "
     "gradients (dp, between hosts).",
     "as ZeRO-3",
     "1/F of weights, gradients and state, and the blocks that compute",
     "3 Ψ (F-1)/F over fsdp; 2 (Ψ/F) (D-1)/D over dp",
     "It is for hosts with slow links between them.",
     "engine/sharded.h"},
    {"tensor",
     "Tensor parallel",
     {{"tp", 4}},
     0,
     "Each rank has some features of every layer: columns of a first matrix, the rows of the next "
     "that belong to them, some heads of "
     "attention, some of the vocabulary. Partial sums are added over the ranks twice a block. With "
     "sequence parallelism the sums are "
     "scattered by positions and gathered again, and what lies between is split too.",
     "Shoeybi and others: Megatron-LM: Training multi-billion parameter language models using "
     "model parallelism, 2019; Korthikanti and "
     "others: Reducing activation recomputation in large transformer models, 2022",
     "Ψ/W weights, gradients, state; activations within layers 1/W, between layers whole, or 1/W "
     "with sequence parallelism",
     "for each block 8 b s h (W-1)/W, two all-reduces of activations forward and two backward",
     "It is for layers that are wide, over links that are fast.",
     "parallel/tensor/linear.h"},
    {"context",
     "Context parallel",
     {{"cp", 4}},
     0,
     "Each rank has some positions of every sequence. Attention goes round a ring: keys and values "
     "pass by every rank. Chunks are paired, "
     "an "
     "early one with a late one, so that a causal mask leaves all ranks as much to do. Or two "
     "all-to-alls turn positions into heads and "
     "back. Dropout drops what one process drops.",
     "Liu, Zaharia, Abbeel: Ring attention with blockwise transformers for near-infinite context, "
     "2023; Jacobs and others: DeepSpeed "
     "Ulysses, 2023",
     "Ψ weights, gradients, state; 1/W of activations",
     "for each block, ring: 2 b s h_kv (W-1)/W forward (3/4 of it under a causal mask), as much "
     "and the gradients backward; heads: 8 b s h "
     "(W-1)/W² forward and backward together; and Ψ's gradients, as data parallel",
     "It is for sequences so long that activations do not fit.",
     "parallel/context/attention.h"},
    {"experts",
     "Expert parallel",
     {{"ep", 4}},
     0,
     "In the place of an MLP stand many, the experts, each on one rank (the columns to the right); "
     "a router sends every token to a few of "
     "them. All else is data parallel.",
     "Shazeer and others: Outrageously large neural networks: the sparsely-gated "
     "mixture-of-experts layer, 2017; Lepikhin and others: "
     "GShard, "
     "2020",
     "1/W of the experts' weights, gradients, state; the rest whole",
     "for each layer of experts 4 k b s h (W-1)/W, where tokens go evenly: to the experts and "
     "back, forward and backward; and gradients of "
     "all else, as data parallel",
     "It is for more weights at the same computation.",
     "parallel/experts/mixture.h"},
    {"pipeline",
     "Pipeline parallel",
     {{"pp", 4}},
     0,
     "Each rank has some of the layers; micro-batches follow each other through them "
     "([schedules](pipelines.md)).",
     "Huang and others: GPipe: Efficient training of giant neural networks using pipeline "
     "parallelism, 2019",
     "Ψ/W weights, gradients, state; activations of as many micro-batches as the schedule holds",
     "2 b s h at each border of two ranks, one way forward and the other backward",
     "It is for models of many layers, over links that are slow.",
     "parallel/pipeline/pipeline.h"},
    {"dp-tp",
     "Data x tensor",
     {{"dp", 2}, {"tp", 2}},
     0,
     "Two replicas of a model that lies over two ranks: the last axis joins neighbors, who share a "
     "host.",
     "as its parts",
     "Ψ/T weights, gradients, state",
     "as tensor parallel over tp, for the replica's samples; 2 (Ψ/T) (D-1)/D over dp",
     "It is for hosts of several ranks.",
     "parallel/compose/parallelize.h"},
    {"pp-dp-tp",
     "Pipeline x data x tensor",
     {{"pp", 2}, {"dp", 2}, {"tp", 2}},
     0,
     "All three: layers by pp, samples by dp, features by tp.",
     "Narayanan and others: Efficient large-scale language model training on GPU clusters using "
     "Megatron-LM, 2021",
     "Ψ/(P T) weights, gradients, state",
     "as its parts, each for its share",
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

const char* const kForms =
    "# Forms of parallelism\n\n"
    "Every form of `weft/parallel`: what each rank holds, what it computes, what travels, how it "
    "looks. This page is written by the code\n"
    "(`./dev docs`): the pictures are drawn from the mesh's own coordinates. `weft plan show` "
    "draws any mesh, and\n"
    "[pipelines](pipelines.md) has the schedules.\n\n"
    "- W ranks; Ψ parameters; a batch of b samples of s positions and h features, kv heads of h_kv "
    "features together\n"
    "- D, F, T, P: the sizes of the axes dp, fsdp, tp, pp\n"
    "- what travels is counted in elements that one rank sends in a step, of the whole batch or "
    "the share that the rank has; it is what "
    "the\n"
    "  header states and its tests count\n\n"
    "All of them give what one process gives on the whole batch. `parallelize(model, plan, mesh)` "
    "(weft/parallel/compose/parallelize.h) "
    "makes\n"
    "any product of dp, fsdp, tp, pp, cp (sequences) and ep (experts) from the sizes of a mesh.\n\n"
    "In the pictures each rank is a card with four squares: its part of the batch (samples "
    "downwards, positions to the right), and its "
    "parts\n"
    "of weights, gradients and optimizer state (layers downwards, features to the right). Full "
    "color: kept. Light: fetched for as long as "
    "it\n"
    "is used.\n";

const char* const kAfterwardsForms =
    "\n## Choosing\n\n"
    "Begin with data parallel. State does not fit: ZeRO-1 or -2, which cost nothing. Weights do "
    "not fit: ZeRO-3, or tensor parallel where\n"
    "links are fast. Activations do not fit: recomputation (weft/parallel/recompute), selective "
    "before full; weft/plan/activations.h "
    "counts\n"
    "them. One sequence does not fit: context parallel. Over slow links: pipeline, or hybrid "
    "sharding. What talks most belongs last in a\n"
    "mesh, so that its ranks share a host.\n";

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
