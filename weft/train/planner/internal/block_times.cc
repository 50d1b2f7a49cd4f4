#include "weft/train/planner/internal/block_times.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/parallel/compose/autocast.h"
#include "weft/plan/collectives/calibration.h"
#include "weft/train/internal/measured.h"

namespace weft::train::internal {
namespace {

using parallel::Tensors;
using std::chrono::steady_clock;

constexpr std::uint8_t kFirst = 254;  // Priority of an allocator that replaces all others.
constexpr double kLongSeconds = 1;    // Of all runs of a block that takes long; at least one.

// Counts the bytes of libtorch's CPU tensors while it lives, whichever allocator makes them.
// Tensors that outlive it are freed as usual.
class MemoryMeter {
 public:
  MemoryMeter() : counting_(new Counting(c10::GetCPUAllocator())) {
    c10::SetCPUAllocator(counting_, kFirst);
  }
  ~MemoryMeter() { c10::SetCPUAllocator(counting_->below, kFirst); }
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  double live() const { return static_cast<double>(counting_->live.load()); }

 private:
  // Convolutions take memory by raw_allocate(), which needs the pointer itself as the context. So a
  // table has what lies below each pointer.
  struct Counting final : c10::Allocator {
    explicit Counting(c10::Allocator* below_) : below(below_) {}
    struct Piece {
      c10::DataPtr data;
      Counting* owner = nullptr;
      std::int64_t bytes = 0;
    };
    struct Table {
      std::mutex mutex;
      std::unordered_map<void*, Piece> pieces;
    };
    static Table& table() {
      static Table& all = *new Table;  // Tensors may outlive static objects.
      return all;
    }
    c10::DataPtr allocate(std::size_t bytes) override {
      c10::DataPtr data = below->allocate(bytes);
      void* const pointer = data.get();
      if (pointer == nullptr) return data;
      live += static_cast<std::int64_t>(bytes);
      const std::lock_guard lock(table().mutex);
      table().pieces[pointer] = {std::move(data), this, static_cast<std::int64_t>(bytes)};
      return {pointer, pointer, &release, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    static void release(void* pointer) {
      Piece piece;  // Freed after the table is unlocked.
      const std::lock_guard lock(table().mutex);
      const auto at = table().pieces.find(pointer);
      if (at == table().pieces.end()) return;
      piece = std::move(at->second);
      piece.owner->live -= piece.bytes;
      table().pieces.erase(at);
    }
    void copy_data(void* to, const void* from, std::size_t bytes) const override {
      below->copy_data(to, from, bytes);
    }
    c10::Allocator* const below;
    std::atomic<std::int64_t> live{0};
  };
  Counting* const counting_;  // Never freed: an allocator must live as long as the process.
};

double bytes_of(const Tensors& tensors) {
  double sum = 0;
  for (const at::Tensor& one : tensors) sum += static_cast<double>(one.nbytes());
  return sum;
}

// Parameters that no other block has too.
double own_parameters(const parallel::Block& block) {
  double sum = 0;
  for (const auto& item : block.module->named_parameters()) {
    const bool shared = std::any_of(block.tied.begin(), block.tied.end(), [&](const auto& tied) {
      return tied.second.is_same(item.value()) &&
             tied.first != (block.prefix.value_or(block.name).empty()
                                ? item.key()
                                : block.prefix.value_or(block.name) + "." + item.key());
    });
    if (!shared) sum += static_cast<double>(item.value().numel());
  }
  return sum;
}

// Equal for blocks that are alike: types, parameters and inputs. Empty for a block without
// parameters, which may do anything.
std::string likeness(const parallel::Block& block, const std::vector<Tensors>& inputs) {
  const auto parameters = block.module->parameters();
  if (parameters.empty()) return {};
  std::ostringstream text;
  for (const auto& module : block.module->modules()) text << module->name() << ' ';
  for (const at::Tensor& one : parameters)
    text << one.sizes() << one.dtype() << one.requires_grad();
  for (const Tensors& of : inputs)
    for (const at::Tensor& one : of)
      text << one.sizes() << one.strides() << one.dtype() << one.requires_grad();
  return text.str();
}

// One block at one number of samples.
struct Measurement {
  double forward = 0, backward = 0, kept = 0;
  Tensors outputs;
};

class BlockTimer {
 public:
  BlockTimer(const Task& task, const Group& world, const BlockTimesOptions& options)
      : task_(task), world_(world), options_(options) {}

  Measurement measure(const parallel::Block& block, const Tensors& inputs,
                      const Tensors& targets) const {
    Measurement m;
    std::vector<double> forward, backward;
    int runs = options_.runs + 1;  // the first run warms up
    for (int run = 0; run < runs; ++run) {
      for (int turn = 0; turn < options_.turn; ++turn) world_.barrier();
      world_.barrier();
      Measurement one = once(block, inputs, targets);
      for (int turn = options_.turn + 1; turn < options_.turns; ++turn) world_.barrier();
      if (run > 0) {
        forward.push_back(one.forward);
        backward.push_back(one.backward);
      } else {
        const double long_runs =
            kLongSeconds / largest_numbers(world_, {one.forward + one.backward})[0];
        runs = 1 + std::clamp(static_cast<int>(long_runs), 1, options_.runs);
      }
      m.outputs = std::move(one.outputs);
    }
    m.forward = median(forward);
    m.backward = median(backward);
    static std::mutex one_at_a_time;  // Ranks may be threads of one process.
    const std::lock_guard lock(one_at_a_time);
    const MemoryMeter meter;
    const parallel::Autocast autocast(options_.precision);
    const Tensors leaves = leaves_of(inputs);
    const double before = meter.live();
    const Tensors outputs = run_forward(block, leaves, targets);
    m.kept = meter.live() - before;
    return m;
  }

 private:
  static Tensors leaves_of(const Tensors& inputs) {
    Tensors leaves;
    for (const at::Tensor& x : inputs)
      leaves.push_back(x.detach().requires_grad_(x.requires_grad()));
    return leaves;
  }

  // The block's tensors; the last block's loss.
  Tensors run_forward(const parallel::Block& block, const Tensors& inputs,
                      const Tensors& targets) const {
    Tensors outputs = block.forward(inputs);
    if (!targets.empty()) outputs = {task_.model.loss(outputs, targets, contexts_)};
    return outputs;
  }

  Measurement once(const parallel::Block& block, const Tensors& inputs,
                   const Tensors& targets) const {
    Measurement m;
    const Tensors leaves = leaves_of(inputs);
    const auto start = steady_clock::now();
    Tensors roots, ones;
    {
      const parallel::Autocast autocast(options_.precision);
      for (const at::Tensor& y : run_forward(block, leaves, targets)) {
        m.outputs.push_back(y.detach().requires_grad_(y.requires_grad()));
        if (!y.requires_grad()) continue;
        roots.push_back(y);
        ones.push_back(at::ones_like(y));
      }
    }
    m.forward = seconds_since(start);
    const auto turn = steady_clock::now();
    if (!roots.empty()) torch::autograd::backward(roots, ones);
    m.backward = seconds_since(turn);
    return m;
  }

  const Task& task_;
  const Group& world_;
  const BlockTimesOptions& options_;
  const parallel::Contexts contexts_;
};

data::Batch samples_of(const Task& task, std::int64_t count) {
  data::Share share{.global_size = count};
  for (std::int64_t i = 0; i < count; ++i) share.indices.push_back(i % task.train.size);
  return task.train.make(share);
}

// The mean over the ranks.
void share_times(const Group& world, plan::Profile& profile) {
  std::vector<double> all;
  for (const plan::MeasuredBlock& block : profile.blocks) {
    all.insert(all.end(), block.forward.begin(), block.forward.end());
    all.insert(all.end(), block.backward.begin(), block.backward.end());
  }
  at::Tensor sum = at::tensor(all, at::kDouble);
  world.all_reduce(sum);
  const double* next = sum.const_data_ptr<double>();
  for (plan::MeasuredBlock& block : profile.blocks) {
    for (double& s : block.forward) s = *next++ / world.size();
    for (double& s : block.backward) s = *next++ / world.size();
  }
}

}  // namespace

plan::Profile time_blocks(const Task& task, const Group& world, const BlockTimesOptions& options) {
  WEFT_REQUIRE(!options.batches.empty() && options.runs > 0, "a profile needs batches and runs");
  plan::Profile profile{.name = options.name,
                        .machine = plan::machine_identity(),
                        .ranks = world.size(),
                        .tokens = options.tokens};
  std::vector<Tensors> inputs, targets;
  for (const std::int64_t count : options.batches) {
    profile.batches.push_back(static_cast<double>(count));
    data::Batch batch = samples_of(task, count);
    inputs.push_back(std::move(batch.inputs));
    targets.push_back(std::move(batch.targets));
  }
  const BlockTimer timer(task, world, options);
  const std::size_t count = task.model.blocks.size();
  std::map<std::string, std::pair<plan::MeasuredBlock, std::vector<Tensors>>> seen;  // with outputs
  for (std::size_t b = 0; b < count; ++b) {
    const parallel::BlockSpec& spec = task.model.blocks[b];
    parallel::Block block = spec.make({});
    block.name = spec.name;
    const bool is_last = b + 1 == count;
    plan::MeasuredBlock measured{.name = spec.name, .parameters = own_parameters(block)};
    const std::string alike = is_last ? std::string() : likeness(block, inputs);
    if (const auto before = seen.find(alike); before != seen.end()) {
      plan::MeasuredBlock same = before->second.first;
      same.name = measured.name;
      same.parameters = measured.parameters;
      profile.blocks.push_back(std::move(same));
      inputs = before->second.second;
      continue;
    }
    double seconds = 0, bytes = 0;  // of the last number of samples
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const double ratio = i == 0 ? 1 : profile.batches[i] / profile.batches[i - 1];
      if (i > 0 && (ratio * seconds > options.most_seconds || ratio * bytes > options.most_bytes)) {
        inputs.resize(i);
        break;
      }
      Measurement m = timer.measure(block, inputs[i], is_last ? targets[i] : Tensors());
      const auto agreed = largest_numbers(world, {m.forward + m.backward, m.kept});
      seconds = agreed[0], bytes = agreed[1];
      measured.forward.push_back(m.forward);
      measured.backward.push_back(m.backward);
      // The largest batch tells the bytes.
      measured.output_bytes = bytes_of(m.outputs) / profile.batches[i];
      measured.kept_bytes = std::max(0.0, m.kept) / profile.batches[i];
      inputs[i] = std::move(m.outputs);
    }
    if (!alike.empty()) seen.insert_or_assign(alike, std::pair(measured, inputs));
    profile.blocks.push_back(std::move(measured));
  }
  // Numbers of samples that are too many for one block are left out of all.
  profile.batches.resize(inputs.size());
  for (plan::MeasuredBlock& block : profile.blocks) {
    block.forward.resize(inputs.size());
    block.backward.resize(inputs.size());
  }
  share_times(world, profile);
  return profile;
}

}  // namespace weft::train::internal
