#include "weft/plan/step/internal/replica.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/plan/mesh/stages.h"
#include "weft/plan/step/internal/cache.h"
#include "weft/plan/step/internal/streams.h"

namespace weft::plan::internal {
namespace {

// Share of a block's computation behind which its all-to-alls hide, where micro-batches alternate.
constexpr double kHidesExperts = 0.7;

Split split_of(const Job& job, int replica) {
  const Layout& l = job.layout;
  const double share = l.shares.empty() ? 1 : l.shares[static_cast<std::size_t>(replica)];
  return {.micro_batch = l.micro_batch * share,
          .tp = l.tp,
          .cp = l.cp,
          .ep = l.ep,
          .sequence_parallel = l.sequence_parallel,
          .precision = l.precision,
          .software = job.software};
}

}  // namespace

namespace {

Blocks cached_blocks(const Job& job, int index) {
  const Split split = split_of(job, index);
  if (job.cache == nullptr) return blocks_of(job.model, split);
  const StepCache::Content::SplitKey key = {split.micro_batch, split.tp, split.cp, split.ep,
                                            split.sequence_parallel};
  auto& known = job.cache->content().blocks;
  const auto found = known.find(key);
  return found != known.end() ? found->second : known[key] = blocks_of(job.model, split);
}

std::vector<RankCost> sums_of(const std::vector<StageCost>& stages, int ranks) {
  std::vector<RankCost> sums(static_cast<std::size_t>(ranks));
  for (const StageCost& stage : stages) {
    RankCost& rank = sums[static_cast<std::size_t>(stage.rank)];
    rank.parameters += stage.parameters;
    rank.expert_parameters += stage.expert_parameters;
    rank.forward += stage.total_forward();
    rank.backward += stage.total_backward();
    rank.tail += stage.tail;
  }
  return sums;
}

StepCache::Content::GroupKey group_key(const GroupShape& g) {
  return {g.ranks, g.nodes, g.per_node, g.sharing, g.intra};
}

}  // namespace

Replica::Replica(const Job& job, int index)
    : job_(job), index_(index), blocks_(cached_blocks(job, index)) {
  const Calibration& constants = job.constants != nullptr ? *job.constants : calibration();
  // Stages that fill whole equal nodes have equal sites.
  const int stage_ranks = world_of(job.layout) / job.layout.pp;
  const bool even = job.measured.slowness.empty();
  const bool same =
      even && job.cluster.nodes.size() == 1 && stage_ranks % job.cluster.nodes[0].devices == 0;
  const auto ranks = static_cast<std::size_t>(job.layout.pp);
  sites_.reserve(ranks);
  devices_.reserve(ranks);
  for (int rank = 0; rank < job.layout.pp; ++rank) {
    if (same && rank > 0) {
      sites_.push_back(sites_.front());
      sites_.back().first_rank += rank * stage_ranks;
    } else {
      sites_.push_back(site_of(job, rank, index));
    }
    const Accelerator& a =
        job.cluster.accelerators[static_cast<std::size_t>(sites_.back().accelerator)];
    devices_.push_back(
        rank > 0 && &devices_.back()->accelerator() == &a
            ? devices_.back()
            : std::make_shared<DeviceModel>(a, job.layout.precision, job.software, constants));
    int kind = same ? 0 : rank;
    for (int other = 0; even && !same && other < rank && kind == rank; ++other) {
      Site same = sites_[static_cast<std::size_t>(other)];
      same.first_rank = sites_.back().first_rank;
      if (same == sites_.back()) kind = kind_[static_cast<std::size_t>(other)];
    }
    kind_.push_back(kind);
  }
  read_profile(split_of(job, index));
  cut();
  price();
  ranks_ = sums_of(stages_, job.layout.pp);
  add_messages();
}

bool Replica::gathers_each_time() const {
  return job_.layout.zero_stage == 3 &&
         !(job_.software.gathers_once_in_pipeline && job_.layout.pp > 1);
}

const BlockCost& Replica::cost_of(const ModelBlock& block, int rank) {
  const auto key = std::pair(&block, kind_[static_cast<std::size_t>(rank)]);
  const auto found = costs_.find(key);
  if (found != costs_.end()) return found->second;
  return costs_[key] = find_cost(block, rank);
}

BlockCost Replica::find_cost(const ModelBlock& block, int rank) const {
  if (job_.cache == nullptr || job_.cluster.nodes.size() > 1 || !job_.measured.slowness.empty())
    return measure(block, rank);
  const Site& site = sites_[static_cast<std::size_t>(rank)];
  const StepCache::Content::GroupKey none{};
  const StepCache::Content::CostKey shared = {&block,
                                              site.accelerator,
                                              group_key(site.tensor),
                                              group_key(site.context),
                                              group_key(site.expert),
                                              gathers_each_time() ? group_key(site.shards) : none};
  auto& known = job_.cache->content().costs;
  const auto there = known.find(shared);
  if (there != known.end()) return there->second;
  return known[shared] = measure(block, rank);
}

BlockCost Replica::measure(const ModelBlock& block, int rank) const {
  const Site& site = sites_[static_cast<std::size_t>(rank)];
  BlockTime time = time_of(block, device(rank));
  if (const auto at = references_.find(&block); at != references_.end())
    scale(time, at->second, device(rank));
  const double slower = job_.measured.compute * slowness(rank);
  BlockCost cost = {slower * time.all.forward, slower * time.all.backward_input,
                    slower * time.all.backward_weight, slower * time.again};
  for (const Exchange& e : block.exchanges) add_exchange(e, time.all.forward, rank, cost);
  wait_for_host(block, cost);
  if (gathers_each_time()) {
    const double whole = block.parameters + block.expert_parameters;
    if (!reads_in_place(site.shards))
      cost.gather =
          collective_seconds(ExchangeKind::kAllGather, whole * gathered_bytes(job_), site.shards);
    cost.scatter =
        collective_seconds(ExchangeKind::kReduceScatter, whole * gradient_bytes(job_), site.shards);
  }
  return cost;
}

// In forward, the host waits for the number of tokens of each expert, so that its launches add to
// the device's time. In backward it runs ahead.
void Replica::wait_for_host(const ModelBlock& block, BlockCost& cost) {
  cost.forward += block.host_forward;
  const double busy = cost.backward_input + cost.backward_weight + cost.back.sum();
  cost.backward_input += std::max(0.0, block.host_backward - busy);
}

void Replica::add_exchange(const Exchange& e, double compute, int rank, BlockCost& cost) const {
  const Site& site = sites_[static_cast<std::size_t>(rank)];
  const GroupShape& group = e.axis == SplitAxis::kTensor    ? site.tensor
                            : e.axis == SplitAxis::kContext ? site.context
                                                            : site.expert;
  const ExchangeKind kind = e.kind == ExchangeKind::kRing ? ExchangeKind::kAllGather : e.kind;
  double one = kind == ExchangeKind::kAllToAll && e.copies > 1
                   ? dispatch_seconds(e.bytes, e.copies, group)
                   : collective_seconds(kind, e.bytes, group);
  if (e.axis == SplitAxis::kTensor && one > 0) one += job_.software.tensor_wait;
  double hides = e.hidden_behind;
  if (e.axis == SplitAxis::kExpert && job_.software.overlaps_experts) hides = kHidesExperts;
  if (e.axis == SplitAxis::kTensor && job_.software.hides_tensor) hides = std::max(hides, 0.5);
  const auto exposed = [&](int times, double work) {
    return std::max(0.0, times * one - hides * work);
  };
  const auto add = [&](BlockCost::Exchanges& to, double seconds) {
    (e.axis == SplitAxis::kTensor    ? to.tensor
     : e.axis == SplitAxis::kContext ? to.context
                                     : to.expert) += seconds;
  };
  // Attention reads keys and values in place; their gradients, half of backward, are added up.
  if (e.kind == ExchangeKind::kRing && reads_in_place(group))
    return add(cost.back, exposed(e.backward / 2, 2 * compute));
  add(cost.ahead, exposed(e.forward, compute));
  add(cost.back, exposed(e.backward, 2 * compute));
  add(cost.repeated, exposed(e.again, compute));
  add(cost.selective, exposed(e.selective, compute));
}

// Layers in equal numbers; the first stages take what is left over. The embedding goes to the first
// stage, the head to the last one.
std::vector<int> Replica::even_cuts(int stages) const {
  const int all = static_cast<int>(blocks_.size());
  if (job_.software.cuts == CutRule::kEnds && all % stages == 0 && (all - 2) % stages != 0) {
    std::vector<int> equal;
    for (int s = 1; s < stages; ++s) equal.push_back(s * (all / stages));
    return equal;
  }
  std::vector<int> layers;
  for (std::size_t b = 0; b < blocks_.size(); ++b)
    if (blocks_[b]->is_layer) layers.push_back(static_cast<int>(b));
  const int count = static_cast<int>(layers.size());
  WEFT_REQUIRE(stages <= count, std::to_string(stages) + " stages of " + std::to_string(count) +
                                    " blocks; use pp x virtual_stages = " + std::to_string(count) +
                                    " or fewer");
  std::vector<int> cuts;
  int at = 0;
  for (int s = 0; s + 1 < stages; ++s) {
    at += count / stages + (s < count % stages ? 1 : 0);
    cuts.push_back(layers[static_cast<std::size_t>(at)]);
  }
  return cuts;
}

// A stage ends with the block whose sum over all blocks passes its share (nanotron: build_model in
// models/base.py): the embedding costs nothing, the head its matrix.
std::vector<int> Replica::parameter_cuts(int stages) const {
  std::vector<double> sums;
  double sum = 0;
  for (const auto& block : blocks_) {
    const bool head = block == blocks_.back(), embedding = block == blocks_.front();
    sum += embedding ? 0 : head ? block->tied_parameters : block->parameters;
    sums.push_back(sum);
  }
  std::vector<int> cuts;
  int at = 0;
  const int count = static_cast<int>(blocks_.size());
  for (int s = 0; s + 1 < stages; ++s) {
    const int before = at;
    while (at < count && sums[static_cast<std::size_t>(at)] <= sum * (s + 1) / stages * (1 + 1e-9))
      ++at;
    at = std::clamp(at + 1, before + 1, count - (stages - 1 - s));
    cuts.push_back(at);
  }
  return cuts;
}

std::vector<int> Replica::cost_cuts(int stages) {
  const Recompute kept = job_.layout.recompute;
  const bool shared =
      job_.cache != nullptr && job_.cluster.nodes.size() == 1 && job_.measured.slowness.empty();
  const auto key = std::tuple(blocks_.front().get(), sites_[0].accelerator, kept, stages);
  if (shared) {
    const auto found = job_.cache->content().cuts.find(key);
    if (found != job_.cache->content().cuts.end()) return found->second;
  }
  std::vector<Block> blocks;
  for (const auto& block : blocks_) {
    const BlockCost& cost = cost_of(*block, 0);
    const double again = !block->recomputes || kept == Recompute::kNone ? 0
                         : kept == Recompute::kFull                     ? cost.forward
                                                                        : cost.again;
    blocks.push_back({cost.forward + cost.backward_input + cost.backward_weight + again, 0,
                      static_cast<std::int64_t>(block->output_bytes)});
  }
  WEFT_REQUIRE(stages <= static_cast<int>(blocks.size()),
               std::to_string(stages) + " stages of " + std::to_string(blocks.size()) +
                   " blocks; use pp x virtual_stages = " + std::to_string(blocks.size()) +
                   " or fewer");
  std::vector<int> cuts = cut_stages(blocks, {.stages = stages}).cuts;
  if (shared) job_.cache->content().cuts[key] = cuts;
  return cuts;
}

void Replica::cut() {
  const Layout& l = job_.layout;
  const int stages = l.pp * l.virtual_stages, blocks = static_cast<int>(blocks_.size());
  std::vector<int> cuts = l.cuts;
  if (cuts.empty() && stages > 1) {
    const CutRule rule = is_transformer(job_.model) ? job_.software.cuts : CutRule::kTime;
    cuts = rule == CutRule::kEven || rule == CutRule::kEnds ? even_cuts(stages)
           : rule == CutRule::kParameters                   ? parameter_cuts(stages)
                                                            : cost_cuts(stages);
  }
  WEFT_REQUIRE(static_cast<int>(cuts.size()) == stages - 1,
               std::to_string(cuts.size()) + " cuts for " + std::to_string(stages) +
                   " stages; give one less than stages");
  const schedule::pipeline::Request request = {
      .algorithm = l.schedule, .ranks = l.pp, .virtual_stages = l.virtual_stages};
  int first = 0;
  for (int s = 0; s < stages; ++s) {
    const int last = s + 1 < stages ? cuts[static_cast<std::size_t>(s)] : blocks;
    WEFT_REQUIRE(last > first && last <= blocks,
                 "cut " + std::to_string(last) + " of stage " + std::to_string(s) +
                     " leaves it without blocks; cuts rise from 1 to " +
                     std::to_string(blocks - 1));
    StageCost stage{.rank = l.pp > 1 ? schedule::pipeline::rank_of(request, s) : 0,
                    .first = first,
                    .last = last};
    stages_.push_back(stage);
    first = last;
  }
}

// Of all parameters, whose gradients each further micro-batch is added to.
double Replica::share_of(const StageCost& stage) const {
  double all = 0, mine = 0;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const double parameters = blocks_[b]->parameters + blocks_[b]->expert_parameters;
    all += parameters;
    const int block = static_cast<int>(b);
    if (block >= stage.first && block < stage.last) mine += parameters;
  }
  return all > 0 ? mine / all : static_cast<double>(stage.last - stage.first) / blocks_.size();
}

// Equal stages on equal sites cost the same, and are priced once.
void Replica::price() {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    StageCost& stage = stages_[s];
    if (!works_as_before(static_cast<int>(s))) {
      price(stage);
      continue;
    }
    StageCost same = stages_[s - 1];
    same.rank = stage.rank;
    same.first = stage.first;
    same.last = stage.last;
    stage = same;
  }
}

// True if the stage does the same as the one before it. The first stage is like no other, since it
// holds what others tie to it.
bool Replica::works_as_before(int stage) const {
  if (stage < 2) return false;
  const StageCost &a = stages_[static_cast<std::size_t>(stage) - 1],
                  &b = stages_[static_cast<std::size_t>(stage)];
  return kind_[static_cast<std::size_t>(a.rank)] == kind_[static_cast<std::size_t>(b.rank)] &&
         std::equal(blocks_.begin() + a.first, blocks_.begin() + a.last, blocks_.begin() + b.first,
                    blocks_.begin() + b.last);
}

void Replica::price(StageCost& stage) {
  const Recompute kept = job_.layout.recompute;
  const double whole = job_.measured.micro_batch, fixed = whole > 0 ? whole * share_of(stage) : 0;
  stage.forward += fixed / 2;
  stage.backward_input += fixed / 2;
  for (int b = stage.first; b < stage.last; ++b) {
    const ModelBlock& block = *blocks_[static_cast<std::size_t>(b)];
    const BlockCost& cost = cost_of(block, stage.rank);
    stage.parameters += block.parameters;
    // The last stage has a copy of the embedding, and both copies add their gradients.
    if (block.tied_to_first && stage.first > 0) {
      stage.parameters += block.tied_parameters;
      tied_parameters_ = block.tied_parameters;
    }
    stage.expert_parameters += block.expert_parameters;
    stage.forward += cost.forward;
    stage.backward_input += cost.backward_input;
    stage.backward_weight += cost.backward_weight;
    double repeats = 0;  // Share of the block's forward that runs again.
    if (block.recomputes && kept == Recompute::kFull) repeats = 1;
    const SelectiveKind kind = job_.software.selective;
    if (block.recomputes && kept == Recompute::kSelective) {
      if (kind == SelectiveKind::kEverySecondLayer)
        repeats = 0.5;
      else
        stage.recompute += cost.again;
    }
    stage.recompute += repeats * cost.forward;
    const auto add = [&](BlockCost::Exchanges& to, const BlockCost::Exchanges& e, double times) {
      to.tensor += times * e.tensor;
      to.context += times * e.context;
      to.expert += times * e.expert;
    };
    if (block.recomputes && kept == Recompute::kSelective) add(stage.exchanges, cost.selective, 1);
    add(stage.in_forward, cost.ahead, 1);
    add(stage.exchanges, cost.ahead, 1);
    add(stage.exchanges, cost.back, 1);
    add(stage.exchanges, cost.repeated, repeats);
    stage.exchange_bytes += exchange_bytes(block, stage.rank, repeats);
  }
  if (gathers_each_time()) play_shards(stage);
}

// Gathers each block ahead of its forward and again ahead of its backward, and scatters its
// gradient behind it.
void Replica::play_shards(StageCost& stage) {
  const Recompute kept = job_.layout.recompute;
  std::vector<StreamBlock> ahead, back;
  double forward = 0, backward = 0;
  for (int b = stage.first; b < stage.last; ++b) {
    const ModelBlock& block = *blocks_[static_cast<std::size_t>(b)];
    const BlockCost& cost = cost_of(block, stage.rank);
    const bool full = block.recomputes && kept == Recompute::kFull;
    const bool some = block.recomputes && kept == Recompute::kSelective;
    const double whole = block.parameters + block.expert_parameters;
    // Gathered weights are copied out of the buffer of the collective, gradients into it.
    const bool copies = !reads_in_place(sites_[static_cast<std::size_t>(stage.rank)].shards);
    const double copy = copies ? device(stage.rank).memory(whole * 2 * gathered_bytes(job_), 1) : 0;
    const double packed = whole * (gathered_bytes(job_) + gradient_bytes(job_));
    const double pack = copies ? device(stage.rank).memory(packed, 1) : 0;
    const double f = cost.forward + cost.ahead.sum() + copy;
    const double g = cost.backward_input + cost.backward_weight + cost.back.sum() +
                     (full   ? cost.forward + cost.repeated.sum()
                      : some ? cost.again + cost.selective.sum()
                             : 0) +
                     copy + pack;
    ahead.push_back({f, cost.gather, 0});
    back.push_back({g, cost.gather, cost.scatter});
    forward += f - copy;
    backward += g - copy - pack;
  }
  std::reverse(back.begin(), back.end());
  const bool prefetch = job_.software.gathers_ahead;
  const double slower = interference(stage.rank);
  const Streams f = play_streams(ahead, prefetch, slower), g = play_streams(back, prefetch, slower);
  stage.exposed_forward = f.compute_end - forward;
  stage.exposed_backward = g.compute_end - backward;
  stage.tail = g.end - g.compute_end;
}

void Replica::add_messages() {
  const Layout& l = job_.layout;
  if (l.pp == 1) return;
  const int stage_ranks = world_of(l) / l.pp;
  for (std::size_t s = 0; s + 1 < stages_.size(); ++s) {
    StageCost& stage = stages_[s];
    const int from = sites_[static_cast<std::size_t>(stage.rank)].first_rank;
    const int to = sites_[static_cast<std::size_t>(stages_[s + 1].rank)].first_rank;
    if (from == to) continue;
    double bytes = blocks_[static_cast<std::size_t>(stage.last) - 1]->output_bytes;
    const bool splits = job_.software.splits_messages && l.tp > 1 && !l.sequence_parallel;
    if (splits) bytes /= l.tp;
    const DevicePlace place = device_place(job_.cluster, from);
    const int here = job_.cluster.nodes[static_cast<std::size_t>(place.type)].devices;
    stage.message_bytes = bytes;
    stage.message = message_seconds(job_.cluster, from, to, bytes, std::min(here, stage_ranks)) +
                    job_.measured.message;
    const bool crosses = device_place(job_.cluster, to).node != place.node;
    if (crosses && job_.software.message_rate > 0)
      stage.message = std::max(stage.message, bytes / job_.software.message_rate);
    if (splits) {
      stage.message += collective_seconds(ExchangeKind::kAllGather, bytes * l.tp,
                                          sites_[static_cast<std::size_t>(stage.rank)].tensor);
    }
  }
}

}  // namespace weft::plan::internal
