// Order of a step, on all ranks:
//
//   tied.begin()   sets aside the gradients of earlier steps, which are sums already
//   run()          this rank's actions and messages; ends when all of its messages are sent
//   tied.sum()     all-reduce of each tied parameter over the ranks that have it
//   broadcast      the loss, from the rank of the last stage
//
// Collectives come only after run(), in one order on all ranks, so they do not mix with the
// messages between stages. Evaluation runs the training schedule without its backwards, so each
// stage stays on the rank that has its blocks. Its messages are planned anew.
//
// Errors: an exception on one rank ends the group, since its neighbors wait for its messages. An
// error of the group itself (a lost peer, a deadline) is passed on as it is. Any other one becomes
// kAborted on the peers, with its text. Inputs are checked inside guarded() too: a rank that
// refuses its batch must not leave the others waiting.
//
// Threads: one thread calls it, and there is no lock.
#include "weft/parallel/pipeline/pipeline.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "weft/parallel/internal/clip.h"
#include "weft/parallel/internal/evaluation_mode.h"
#include "weft/parallel/pipeline/internal/cuts.h"
#include "weft/parallel/pipeline/internal/runner.h"
#include "weft/parallel/pipeline/internal/tied.h"

namespace weft::parallel {

namespace lists = schedule::pipeline;

namespace {

int fewest_stages(lists::Algorithm algorithm) {
  return algorithm == lists::Algorithm::kInterleaved || algorithm == lists::Algorithm::kZeroBubbleV
             ? 2
             : 1;
}

lists::Request request_of(const Group& group, const PipelineOptions& options) {
  return {.algorithm = options.algorithm,
          .ranks = group.size(),
          .micro_batches = options.micro_batches,
          .virtual_stages = options.virtual_stages > 0 ? options.virtual_stages
                                                       : fewest_stages(options.algorithm),
          .costs = options.costs,
          .memory = options.memory};
}

// The same order without backward passes. Stages are on the same ranks as in training.
lists::Schedule forwards_of(const lists::Schedule& training) {
  lists::Schedule forwards = training;
  for (auto& actions : forwards.actions) {
    actions.erase(std::remove_if(actions.begin(), actions.end(),
                                 [](const auto& a) { return a.work != lists::Work::kForward; }),
                  actions.end());
  }
  return forwards;
}

// Cuts along the first dimension, into parts that differ by at most one.
std::vector<Tensors> split(const Tensors& batch, int parts, const char* what) {
  std::vector<Tensors> result(static_cast<std::size_t>(parts));
  WEFT_REQUIRE(!batch.empty(),
               std::string("pipeline: this rank needs the ") + what + ", but got none");
  for (const at::Tensor& tensor : batch) {
    WEFT_REQUIRE(tensor.dim() > 0 && tensor.size(0) == batch[0].size(0),
                 std::string("pipeline: all ") + what +
                     " must have one entry per sample along the first dimension");
    WEFT_REQUIRE(tensor.size(0) >= parts,
                 "pipeline: a batch of " + std::to_string(tensor.size(0)) +
                     " samples cannot be divided into " + std::to_string(parts) +
                     " micro-batches; use at most " + std::to_string(tensor.size(0)));
    const auto pieces = at::tensor_split(tensor, parts, 0);
    for (std::size_t i = 0; i < result.size(); ++i) result[i].push_back(pieces[i]);
  }
  return result;
}

// Gradients stay in the pipeline. In one process they would go on to what made these tensors.
void check_detached(const std::vector<Tensors>& batch, const char* what) {
  for (const Tensors& some : batch) {
    for (const at::Tensor& tensor : some) {
      WEFT_REQUIRE(!tensor.defined() || !tensor.requires_grad(),
                   std::string("train_step: the ") + what +
                       " require a gradient, but none leaves the model; pass " + what +
                       ".detach(), and make the module that computed them a block");
    }
  }
}

// Share of the batch's samples, by the first dimension of the first target.
std::vector<double> shares_of(const std::vector<Tensors>& targets) {
  std::vector<double> shares;
  double all = 0;
  for (const Tensors& some : targets) {
    WEFT_REQUIRE(!some.empty() && some[0].dim() > 0 && some[0].size(0) > 0,
                 "pipeline: a micro-batch needs a target with at least one sample");
    shares.push_back(static_cast<double>(some[0].size(0)));
    all += shares.back();
  }
  for (double& share : shares) share /= all;
  return shares;
}

internal::EvaluationMode::Modules modules_of(const std::map<int, Block>& blocks) {
  internal::EvaluationMode::Modules modules;
  for (const auto& [number, block] : blocks) {
    if (block.module) modules.push_back(block.module);
  }
  return modules;
}

}  // namespace

struct Pipeline::State {
  State(Group group_, PipelineOptions options_)
      : group(std::move(group_)),
        options(std::move(options_)),
        request(request_of(group, options)) {
    // Each of this rank's stages sends at most one message of a kind for each micro-batch.
    wire = internal::make_wire(group,
                               request.micro_batches * (lists::num_stages(request) / group.size()));
    const lists::Schedule schedule = lists::make(request);
    training = lists::steps(schedule)[static_cast<std::size_t>(group.rank())];
    forwards = lists::steps(forwards_of(schedule))[static_cast<std::size_t>(group.rank())];
  }

  bool has(int stage) const { return lists::rank_of(request, stage) == group.rank(); }
  bool has_last() const { return has(lists::num_stages(request) - 1); }
  void make_blocks(int num_blocks, const std::function<Block(int)>& make);
  // Runs `fn`. If it throws, ends the group, so that no peer waits for this rank.
  template <class Fn>
  auto guarded(const Fn& fn) const -> decltype(fn());
  void abort(const Error& why) const;
  void end(const std::exception& error) const;
  double step(internal::Batch batch);
  // The outputs of each micro-batch, on the rank of the last stage.
  std::vector<Tensors> predict(const std::vector<Tensors>& inputs);
  internal::Outcome run(const std::vector<lists::Step>& steps, const internal::Batch& batch);

  Group group;
  PipelineOptions options;
  lists::Request request;
  std::unique_ptr<internal::Wire> wire;
  std::vector<lists::Step> training, forwards;
  std::vector<int> cuts;
  std::map<int, Block> blocks;  // by number
  std::map<int, internal::Fn> stages;
  std::optional<internal::Tied> tied;
};

void Pipeline::State::make_blocks(int num_blocks, const std::function<Block(int)>& make) {
  std::map<int, std::map<std::string, at::Tensor>> shared;
  for (int stage = 0; stage < lists::num_stages(request); ++stage) {
    if (!has(stage)) continue;
    const auto at = static_cast<std::size_t>(stage);
    const int begin = stage == 0 ? 0 : cuts[at - 1], end = at < cuts.size() ? cuts[at] : num_blocks;
    std::vector<std::function<Tensors(const Tensors&)>> fns;
    for (int i = begin; i < end; ++i) {
      const Block& block = blocks.emplace(i, make(i)).first->second;
      WEFT_REQUIRE(block.forward, "pipeline: block " + std::to_string(i) + " has no forward");
      fns.push_back(block.forward);
      if (!block.tied.empty()) shared[i] = block.tied;
    }
    stages[stage] = [fns](Tensors x) {
      for (const auto& fn : fns) x = fn(x);
      return x;
    };
  }
  tied.emplace(group, shared);
}

template <class Fn>
auto Pipeline::State::guarded(const Fn& fn) const -> decltype(fn()) {
  try {
    return fn();
  } catch (const Error& error) {
    const bool known = error.code() == Errc::kPeerLost || error.code() == Errc::kTimeout ||
                       error.code() == Errc::kAborted;
    known ? abort(error) : end(error);  // a lost peer is reported as such
    throw;
  } catch (const std::exception& error) {
    end(error);
    throw;
  }
}

// The ranks that share a tied parameter have a group of their own.
void Pipeline::State::abort(const Error& why) const {
  group.abort(why);
  if (tied) tied->abort(why);
}

void Pipeline::State::end(const std::exception& error) const {
  abort(Error(
      Errc::kAborted,
      "rank " + std::to_string(group.rank()) + " of the pipeline ended with: " + describe(error),
      {"pipeline", group.rank()}));
}

internal::Outcome Pipeline::State::run(const std::vector<lists::Step>& steps,
                                       const internal::Batch& batch) {
  const auto count = static_cast<std::size_t>(request.micro_batches);
  WEFT_REQUIRE(!has(0) || batch.inputs.size() == count,
               "pipeline: " + std::to_string(batch.inputs.size()) +
                   " micro-batches of inputs, not " + std::to_string(count));
  WEFT_REQUIRE(!has_last() || batch.targets.empty() || batch.targets.size() == count,
               "pipeline: " + std::to_string(batch.targets.size()) +
                   " micro-batches of targets, not " + std::to_string(count));
  return internal::Runner(request, stages, options, *wire).run(steps, batch);
}

double Pipeline::State::step(internal::Batch batch) {
  WEFT_REQUIRE(!has_last() || options.loss, "pipeline: the last stage's rank needs options.loss");
  // By samples, so that micro-batches of any sizes give the mean over the batch.
  if (has_last()) batch.shares = shares_of(batch.targets);
  if (batch.training) {
    WEFT_REQUIRE(at::GradMode::is_enabled(),
                 "train_step: gradients are off in this thread, so nothing would be trained; call "
                 "it outside NoGradGuard and InferenceMode");
    check_detached(batch.inputs, "inputs");
    check_detached(batch.targets, "targets");
  }
  if (batch.training) tied->begin();
  at::Tensor loss =
      at::full({1}, run(batch.training ? training : forwards, batch).loss, at::kDouble);
  if (batch.training) tied->sum();
  if (group.size() > 1)
    group.broadcast(loss, lists::rank_of(request, lists::num_stages(request) - 1));
  return loss.item<double>();
}

std::vector<Tensors> Pipeline::State::predict(const std::vector<Tensors>& inputs) {
  const internal::EvaluationMode mode(modules_of(blocks));
  const internal::Batch batch{.inputs = has(0) ? inputs : std::vector<Tensors>(),
                              .training = false};
  auto outputs = run(forwards, batch).outputs;
  return has_last() ? std::move(outputs) : std::vector<Tensors>();
}

Pipeline::Pipeline(Group group, int num_blocks, const std::function<Block(int)>& make,
                   PipelineOptions options)
    : state_(std::make_unique<State>(std::move(group), std::move(options))) {
  state_->guarded([&] {
    state_->cuts = internal::cuts_of(state_->group, num_blocks, lists::num_stages(state_->request),
                                     make, state_->options);
    state_->make_blocks(num_blocks, make);
  });
}

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;

double Pipeline::train_step(const Tensors& inputs, const Tensors& targets) {
  State& s = *state_;
  return s.guarded([&] {
    const int parts = s.options.micro_batches;
    return s.step(
        {.inputs = s.has(0) ? split(inputs, parts, "inputs") : std::vector<Tensors>(),
         .targets = s.has_last() ? split(targets, parts, "targets") : std::vector<Tensors>()});
  });
}

double Pipeline::train_step(const std::vector<Tensors>& inputs,
                            const std::vector<Tensors>& targets) {
  return state_->guarded([&] { return state_->step({.inputs = inputs, .targets = targets}); });
}

double Pipeline::evaluate(const Tensors& inputs, const Tensors& targets) {
  State& s = *state_;
  return s.guarded([&] {
    const int parts = s.options.micro_batches;
    const internal::EvaluationMode mode(modules_of(s.blocks));
    return s.step(
        {.inputs = s.has(0) ? split(inputs, parts, "inputs") : std::vector<Tensors>(),
         .targets = s.has_last() ? split(targets, parts, "targets") : std::vector<Tensors>(),
         .training = false});
  });
}

double Pipeline::evaluate(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets) {
  return state_->guarded([&] {
    const internal::EvaluationMode mode(modules_of(state_->blocks));
    return state_->step({.inputs = inputs, .targets = targets, .training = false});
  });
}

Tensors Pipeline::predict(const Tensors& inputs) {
  State& s = *state_;
  return s.guarded([&] {
    const auto pieces = s.predict(s.has(0) ? split(inputs, s.options.micro_batches, "inputs")
                                           : std::vector<Tensors>());
    Tensors whole;
    for (std::size_t i = 0; !pieces.empty() && i < pieces[0].size(); ++i) {
      Tensors parts_of_one;
      for (const Tensors& piece : pieces) parts_of_one.push_back(piece.at(i));
      whole.push_back(at::cat(parts_of_one, 0));
    }
    return whole;
  });
}

std::vector<Tensors> Pipeline::predict(const std::vector<Tensors>& inputs) {
  return state_->guarded([&] { return state_->predict(inputs); });
}

double Pipeline::clip_grad_norm(double max_norm) {
  State& s = *state_;
  const at::NoGradGuard no_grad;
  at::Tensor sum = at::zeros({1}, at::kDouble);
  for (const at::Tensor& parameter : parameters()) {
    if (!parameter.grad().defined() || s.tied->is_copy(parameter)) continue;
    sum += parameter.grad().to(at::kDouble).square().sum();
  }
  if (s.group.size() > 1) s.group.all_reduce(sum);
  return internal::clip_to_norm(parameters(), std::sqrt(sum.item<double>()), max_norm);
}

void Pipeline::abort(const Error& why) const { state_->abort(why); }

std::vector<std::pair<std::string, at::Tensor>> Pipeline::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& [number, block] : state_->blocks) {
    if (!block.module) continue;
    for (const auto& parameter : block.module->named_parameters()) {
      all.emplace_back(std::to_string(number) + "." + parameter.key(), parameter.value());
    }
  }
  return all;
}

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> all;
  std::set<const c10::TensorImpl*> known;
  for (const auto& [name, parameter] : named_parameters()) {
    if (known.insert(parameter.unsafeGetTensorImpl()).second) all.push_back(parameter);
  }
  return all;
}

const std::vector<int>& Pipeline::cuts() const { return state_->cuts; }

std::vector<int> Pipeline::stages() const {
  std::vector<int> mine;
  for (const auto& [stage, fn] : state_->stages) mine.push_back(stage);
  return mine;
}

bool Pipeline::has_first_stage() const { return state_->has(0); }
bool Pipeline::has_last_stage() const { return state_->has_last(); }

}  // namespace weft::parallel
