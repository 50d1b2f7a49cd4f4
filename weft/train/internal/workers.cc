#include "weft/train/internal/workers.h"

#include <ATen/ATen.h>

#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <variant>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/comm/init.h"
#include "weft/comm/texts.h"
#include "weft/strategy/center.h"

namespace weft::train::internal {
namespace {

using checkpoint::Slice;
using checkpoint::Slices;

// True for the slices that no rank before this one holds, and that are not twice on this rank.
std::vector<bool> first_holders(const Slices& held, const Group& world) {
  std::ostringstream mine;
  for (const Slice& slice : held) mine << key_of(slice) << '\n';
  const auto all = comm::all_gather_texts(world, mine.str());
  std::set<std::string> before;
  for (int rank = 0; rank < world.rank(); ++rank) {
    std::istringstream lines(all[static_cast<std::size_t>(rank)]);
    for (std::string line; std::getline(lines, line);) before.insert(line);
  }
  std::vector<bool> first;
  for (const Slice& slice : held) first.push_back(before.insert(key_of(slice)).second);
  return first;
}

std::vector<at::Tensor> tensors_of(const Slices& slices) {
  std::vector<at::Tensor> tensors;
  for (const Slice& slice : slices) tensors.push_back(slice.tensor);
  return tensors;
}

// Finds tensors of a checkpoint under the names of one worker.
class OfWorker : public checkpoint::SliceSource {
 public:
  OfWorker(const checkpoint::Reader& saved, std::string prefix)
      : saved_(saved), prefix_(std::move(prefix)) {}

  bool has(const std::string& name) const override { return saved_.has(prefix_ + name); }
  void check(const Slices& slices) const override { saved_.check(renamed(slices)); }
  void fill(const Slices& slices) const override { saved_.fill(renamed(slices)); }

 private:
  Slices renamed(Slices slices) const {
    for (Slice& slice : slices) slice.name = prefix_ + slice.name;
    return slices;
  }

  const checkpoint::Reader& saved_;
  const std::string prefix_;
};

constexpr const char* kStrategy = "strategy";  // part of a checkpoint
constexpr const char* kLayout = "layout";      // beside a rank's own memory

std::string prefix_of(int worker) { return "workers." + std::to_string(worker) + "."; }

// Hash (FNV-1a) of the parts of the model that a rank holds, in the order that its memory has.
at::Tensor layout_of(const Slices& held) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const Slice& slice : held) {
    for (const char c : key_of(slice) + '\n')
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return at::full({1}, static_cast<std::int64_t>(hash), at::kLong);
}

// The arrays of the optimizer that this rank holds, in place, without counts of steps.
std::vector<at::Tensor> optimizer_arrays(parallel::ParallelModel& model) {
  std::vector<at::Tensor> arrays;
  checkpoint::Parts parts = model.shards();
  for (const Slice& slice : parts["optimizer"]) {
    if (slice.tensor.is_floating_point() && !slice.name.ends_with(".step"))
      arrays.push_back(slice.tensor);
  }
  return arrays;
}

// The same place in the whole model.
Slice with_values(const Slice& like, const at::Tensor& values) {
  return {like.name, like.shape, like.offset, values};
}

void copy_all(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

std::unique_ptr<strategy::Center> refuse_center(const Group&, const at::Tensor&) {
  throw Error(Errc::kBadConfig,
              "strategy.name: a center for workers on several hosts needs the parameter server, "
              "which this program does not have; build weft with -DWEFT_PS=ON, and use "
              "weft::Trainer");
}

// Workers that share no memory need servers. Servers of the job are used wherever there are some.
// Other rules than downpour and easgd_async do not call the result.
strategy::MakeCenter center_for(const Mesh& mesh, const std::string& codec,
                                const strategy::ServerComponent* servers) {
  const bool of_job = servers != nullptr && servers->job_has_servers();
  if (mesh["dp"].size() == 1 || (!of_job && mesh["dp"].host() != nullptr)) return nullptr;
  if (servers == nullptr) return refuse_center;
  return [servers, codec, all = mesh.world(), interface = comm::interface_of(mesh.world())](
             const Group& workers, const at::Tensor& like) {
    return servers->center(workers, like, {.interface = interface, .codec = codec, .all = all});
  };
}

}  // namespace

void check_workers(const Options& options, const Mesh& mesh) {
  strategy::check(options.strategy, mesh.size("dp"));
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::kBadConfig, "strategy.name = \"" + options.strategy.name + "\": " + why);
  };
  if (options.plan.micro_shards > 0)
    refuse("train.reproducible needs gradients of all ranks at every step, as with \"sync\"");
  if (options.plan.codec != "none")
    refuse("workers exchange weights, not gradients: set strategy.codec, not parallel.codec");
  if (options.plan.adasum)
    refuse("workers exchange weights, not gradients: set parallel.reduce = \"average\"");
  if (options.plan.measure_noise || options.batch_schedule == BatchSchedule::kNoise)
    refuse("train.noise_scale compares gradients of replicas, which have other weights here");
  if (options.verify_steps > 0)
    refuse("train.verify_steps compares the gradients of replicas, which have other weights here");
  if (options.strategy.backup > 0 && mesh.size("dp") != mesh.world().size())
    refuse("strategy.backup needs workers of one rank each: use parallel.dp only");
  if (options.strategy.delay_compensation > 0 &&
      !std::holds_alternative<kernels::Sgd>(options.plan.optimizer.rule)) {
    refuse(
        "strategy.delay_compensation takes the gradient from a step of SGD; set "
        "optimizer.name = \"sgd\"");
  }
  if (!strategy::is_asynchronous(options.strategy)) return;
  const std::string why = "its workers take batches when they are ready, so ";
  if (options.balance_by_speed)
    refuse(why + "train.balance = \"speed\" has nothing to do; leave it at \"even\"");
  if (options.on_straggler != OnStraggler::kWarn)
    refuse(why + "no rank waits for another one; leave train.on_straggler at \"warn\"");
}

parallel::Plan of_worker(parallel::Plan plan, const Options& options, const Mesh& mesh) {
  plan.batch *= plan.accumulate;
  if (!strategy::exchanges_weights(options.strategy)) return plan;
  const int workers = mesh.size("dp");
  plan.batch = (plan.batch + workers - 1) / workers;
  // Each worker would measure other times, and all need the same stages.
  plan.sample.clear();
  return plan;
}

Mesh worker_mesh(const Mesh& mesh, const strategy::Strategy& strategy) {
  if (!strategy::exchanges_weights(strategy)) return mesh;
  std::vector<plan::Axis> axes;
  for (const auto& axis : mesh.layout().axes()) {
    if (axis.name != "dp") axes.push_back(axis);
  }
  if (axes.empty()) axes.push_back({"fsdp", 1});
  std::vector<std::string> names;
  for (const auto& axis : axes) names.push_back(axis.name);
  return Mesh(mesh.along(names), axes);
}

Workers::Workers(const strategy::Strategy& strategy, const Mesh& mesh,
                 parallel::ParallelModel& model, const strategy::ServerComponent* servers)
    : strategy_(strategy),
      name_("strategy." + strategy.name + "."),
      mesh_(mesh),
      model_(model),
      held_(model.held()) {
  const Mesh worker = worker_mesh(mesh, strategy);
  rank_ = worker.world().rank();
  layout_ = layout_of(held_.weights);
  saves_weight_ = first_holders(held_.weights, worker.world());
  saves_buffer_ = first_holders(held_.buffers, worker.world());
  rule_ = strategy::make_rule(
      strategy,
      {.workers = mesh["dp"],
       .world = mesh.world(),
       .weights = tensors_of(held_.weights),
       .trains = [this](std::size_t weight) { return held_.parameters[weight].requires_grad(); },
       .buffers = tensors_of(held_.buffers),
       .optimizer_state = [this] { return optimizer_arrays(model_); },
       .make_center = center_for(mesh, strategy.codec, servers)});
  model_.take_changes();
}

std::string Workers::describe() const {
  std::int64_t weights = 0;
  for (const Slice& slice : held_.weights) weights += slice.tensor.numel();
  return strategy::describe(strategy_, mesh_.size("dp"), weights);
}

void Workers::after_step(const strategy::Step& step) {
  model_.wait_for_weights();  // the rule uses slices of them
  if (rule_->after_step(step)) model_.take_changes();
}

void Workers::begin(std::int64_t step) {
  const at::NoGradGuard no_grad;
  model_.wait_for_weights();
  rule_->begin(step);
  model_.take_changes();
}

void Workers::take_result() {
  const at::NoGradGuard no_grad;
  const strategy::Rule::Result& result = rule_->result();
  copy_all(result.weights, tensors_of(held_.weights));
  copy_all(result.buffers, tensors_of(held_.buffers));
  model_.take_changes();
}

void Workers::with_result(const std::function<void()>& fn) {
  const at::NoGradGuard no_grad;
  const auto weights = tensors_of(held_.weights), buffers = tensors_of(held_.buffers);
  const auto own_weights = clones(weights), own_buffers = clones(buffers);
  const strategy::Rule::Result& result = rule_->result();
  copy_all(result.weights, weights);
  copy_all(result.buffers, buffers);
  model_.take_changes();
  fn();
  copy_all(own_weights, weights);
  copy_all(own_buffers, buffers);
  model_.take_changes();
}

// The result in place of worker 0's weights, and the rest of its state.
void Workers::add_result(checkpoint::Parts& parts, const checkpoint::Parts& own) {
  const strategy::Rule::Result& result = rule_->result();
  if (worker() != 0) return;
  std::set<std::string> names;
  for (std::size_t i = 0; i < held_.weights.size(); ++i) {
    names.insert(held_.weights[i].name);
    if (saves_weight_[i])
      parts["model"].push_back(with_values(held_.weights[i], result.weights[i]));
  }
  for (std::size_t i = 0; i < held_.buffers.size(); ++i) {
    names.insert(held_.buffers[i].name);
    if (saves_buffer_[i])
      parts["model"].push_back(with_values(held_.buffers[i], result.buffers[i]));
  }
  for (const auto& [part, slices] : own) {
    for (const Slice& slice : slices) {
      if (!names.contains(slice.name)) parts[part].push_back(slice);
    }
  }
}

// The rule's arrays, of one rank of worker 0 each, and this rank's own memory. To load: all that
// this rank needs of them.
Slices Workers::array_slices(Use use) {
  Slices slices;
  const strategy::Rule::State state = rule_->state();
  for (const auto& [array, values] : state.arrays) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Slice& like = held_.weights[i];
      if (use == Use::kSave && (worker() != 0 || !saves_weight_[i])) continue;
      slices.push_back({name_ + array + "." + like.name, like.shape, like.offset, values[i]});
    }
  }
  if (use != Use::kSave || mesh_.world().rank() == 0)
    slices.push_back(checkpoint::whole_slice(name_ + "numbers", state.numbers));
  for (std::size_t i = 0; i < state.own.size() && use != Use::kLoadWithoutOwn; ++i)
    slices.push_back(checkpoint::whole_slice(own_name(worker(), std::to_string(i)), state.own[i]));
  if (use == Use::kSave && !state.own.empty())
    slices.push_back(checkpoint::whole_slice(own_name(worker(), kLayout), layout_));
  return slices;
}

std::string Workers::own_name(int worker, const std::string& what) const {
  return name_ + "own." + std::to_string(worker) + "." + std::to_string(rank_) + "." + what;
}

// False also for a checkpoint of an older version, which does not say it.
bool Workers::has_own_layout(const checkpoint::Reader& saved) const {
  const std::string name = own_name(worker(), kLayout);
  return saved.shapes(kStrategy).contains(name) && at::equal(saved.read(kStrategy, name), layout_);
}

// True if this rank loads its own memory: that of the same rank of the same worker, for the same
// part of the model. The memory of a mean's codec is of one number of workers. With another number
// its shards have other lengths, and the sums of "delta" would keep what lost workers have sent. So
// all ranks load it, or none does. Collective.
bool Workers::takes_own(const checkpoint::Reader& saved) const {
  const auto& stored = saved.shapes(kStrategy);
  const std::vector<at::Tensor> own = rule_->state().own;
  const Group& world = mesh_.world();
  bool fits = own.empty() || has_own_layout(saved);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto found = stored.find(own_name(worker(), std::to_string(i)));
    fits = fits && found != stored.end() && own[i].sizes() == at::IntArrayRef(found->second);
  }
  const bool has_mean = !strategy::is_asynchronous(strategy_) && strategy_.name != "gossip";
  if (!has_mean || strategy_.codec == "none") return fits;
  fits = fits && !stored.contains(own_name(mesh_.size("dp"), kLayout));
  fits = comm::holds_on_all(world, fits);
  if (!fits && world.rank() == 0) {
    log_warn("the strategy's codec starts without state: the checkpoint has none for " +
             counted(mesh_.size("dp"), "worker") + " of this mesh");
  }
  return fits;
}

checkpoint::Parts Workers::parts(bool with_result) {
  const at::NoGradGuard no_grad;
  const checkpoint::Parts own = model_.shards();
  checkpoint::Parts parts;
  for (const auto& [part, slices] : own) {
    for (const Slice& slice : slices)
      parts["workers"].push_back(
          {prefix_of(worker()) + slice.name, slice.shape, slice.offset, slice.tensor});
  }
  if (with_result) add_result(parts, own);
  for (Slice& slice : array_slices(Use::kSave)) parts[kStrategy].push_back(std::move(slice));
  return parts;
}

bool Workers::restore_rule(const checkpoint::Reader& saved) {
  const std::string numbers = name_ + "numbers";
  if (!saved.has(numbers)) {
    rule_->restart();
    model_.take_changes();
    return false;
  }
  const bool has_own = takes_own(saved);
  saved.fill(array_slices(has_own ? Use::kLoad : Use::kLoadWithoutOwn));
  if (!has_own) rule_->reset_own();
  rule_->restored();
  return true;
}

bool Workers::restore(const checkpoint::Reader& saved) {
  const at::NoGradGuard no_grad;
  const std::string first = held_.weights.front().name;
  std::string prefix = prefix_of(worker());
  if (!saved.has(prefix + first)) prefix = saved.has(first) ? "" : prefix_of(0);
  model_.load_shards(OfWorker(saved, prefix));
  const bool has_rule = restore_rule(saved);
  // An asynchronous rule's state is shared: no worker trains while another one still loads.
  mesh_.world().barrier();
  return has_rule;
}

}  // namespace weft::train::internal
