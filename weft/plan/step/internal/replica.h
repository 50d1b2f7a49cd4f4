// One replica of a model: its blocks, stages and their costs on the sites where they run.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "weft/plan/cost/operators.h"
#include "weft/plan/step/internal/site.h"
#include "weft/plan/step/step.h"

namespace weft::plan::internal {

// Seconds of one block for one micro-batch.
struct BlockCost {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double again = 0;  // Forward work that selective recomputation repeats.
  struct Exchanges {
    double tensor = 0, context = 0, expert = 0;
    double sum() const { return tensor + context + expert; }
  } ahead, back;                  // Exposed, in forward and in backward.
  Exchanges repeated, selective;  // When forward runs again, and when a part of it does.
  double gather = 0;              // Of the block's weights over the shards.
  double scatter = 0;             // Reduce-scatter of its gradients over the shards.
};

// Seconds of one stage for one micro-batch, by kind.
struct StageCost {
  int rank = 0;
  int first = 0, last = 0;  // Blocks.
  double parameters = 0, expert_parameters = 0;
  double forward = 0, backward_input = 0, backward_weight = 0;  // Computation.
  double recompute = 0;
  BlockCost::Exchanges exchanges;   // Of forward, backward and recomputation together.
  BlockCost::Exchanges in_forward;  // The part of it in forward.
  double exposed_forward = 0, exposed_backward = 0;  // Of gathers and scatters (ZeRO-3).
  double message = 0;                                // To the next stage.
  double message_bytes = 0;
  double exchange_bytes = 0;  // That a rank sends inside blocks.
  double tail = 0;            // Communication after the last backward, exposed.
  double total_forward() const { return forward + in_forward.sum() + exposed_forward; }
  double total_backward() const {
    return backward_input + backward_weight + recompute + exchanges.sum() - in_forward.sum() +
           exposed_backward;
  }
};

// Sums over the stages of a rank along pp.
struct RankCost {
  double parameters = 0, expert_parameters = 0;
  double forward = 0, backward = 0;  // Seconds of one micro-batch.
  double tail = 0;
  double all_parameters() const { return parameters + expert_parameters; }
};

// Seconds of a step besides computation, communication and optimizer: data loading, the host.
double step_overhead(const Job& job);
// Of the layout's codec.
CodecCost codec_cost(const Job& job);
// Throws Error(kInvalidArgument) for measurements that are negative, infinite or of another number
// of ranks.
void check(const Corrections& measured, int ranks);
// True if the ranks of a host hold weights and optimizer state once together, and each updates its
// share of them: weft without ZeRO.
bool updates_once_a_host(const Job& job, const GroupShape& replicas);
// True if the ranks that divide weights (ZeRO) read each other's memory, so that nothing is
// gathered: weft on one host.
bool reads_in_place(const GroupShape& group);

// Bytes of a weight that is gathered, and of a gradient that is reduced.
double gathered_bytes(const Job& job);
double gradient_bytes(const Job& job);

class Replica {
 public:
  // Replica `index` along dp. `job` must outlive it.
  Replica(const Job& job, int index);

  const std::vector<StageCost>& stages() const { return stages_; }
  const std::vector<Site>& sites() const { return sites_; }      // By rank along pp.
  const std::vector<RankCost>& ranks() const { return ranks_; }  // By rank along pp.
  const Blocks& blocks() const { return blocks_; }
  // Adds the gradient phase: seconds after the last backward of a rank along pp, exposed.
  struct Sync {
    double gradients = 0, sharding = 0, optimizer = 0;
    double bytes = 0;  // Sent by a rank.
  };
  Sync sync(int rank) const;
  // Bytes that a rank along pp sends for each micro-batch: messages between stages, and collectives
  // inside blocks.
  double sent_bytes(int rank) const;
  const DeviceModel& device(int rank) const { return *devices_[static_cast<std::size_t>(rank)]; }
  // Measured activations of block `index` over those that the model's formulas give. 1 without a
  // profile.
  double kept_ratio(std::size_t index) const;
  bool gathers_each_time() const;           // ZeRO-3 for each micro-batch.
  double shard_parameters(int rank) const;  // Whose state a rank keeps, experts included.

 private:
  const BlockCost& cost_of(const ModelBlock& block, int rank);
  BlockCost find_cost(const ModelBlock& block, int rank) const;
  BlockCost measure(const ModelBlock& block, int rank) const;
  void add_exchange(const Exchange& e, double compute, int rank, BlockCost& cost) const;
  static void wait_for_host(const ModelBlock& block, BlockCost& cost);
  void cut();
  std::vector<int> even_cuts(int stages) const;
  std::vector<int> parameter_cuts(int stages) const;
  std::vector<int> cost_cuts(int stages);
  double share_of(const StageCost& stage) const;
  void price();
  bool works_as_before(int stage) const;
  void price(StageCost& stage);
  void play_shards(StageCost& stage);
  void add_messages();
  double exchange_bytes(const ModelBlock& block, int rank, double repeats) const;
  double interference(int rank) const;
  double slowness(int rank) const;
  double sync_bytes(int rank) const;
  double exchanged_bytes(int rank) const;  // Of weights, by a rule that is not sync.

  const Job& job_;
  int index_;
  Blocks blocks_;
  // Of a profile: the undivided block, its measured seconds, and its activations over those of the
  // formulas. By block; equal blocks share their mean.
  struct Reference {
    std::shared_ptr<const ModelBlock> whole;
    double forward = 0, backward = 0, kept = 0, count = 0;
  };
  std::map<const ModelBlock*, Reference> references_;
  void read_profile(Split split);
  static void scale(BlockTime& time, const Reference& reference, const DeviceModel& device);
  std::vector<Site> sites_;
  std::vector<std::shared_ptr<const DeviceModel>> devices_;       // By rank along pp.
  std::map<std::pair<const ModelBlock*, int>, BlockCost> costs_;  // By block and kind of site.
  std::vector<int> kind_;                                         // Kind of site, by rank along pp.
  std::vector<StageCost> stages_;
  std::vector<RankCost> ranks_;  // By rank along pp.
  double tied_parameters_ = 0;   // Of the matrix that the first and the last stage share.
};

}  // namespace weft::plan::internal
