#include "weft/comm/group.h"

#include <ATen/ATen.h>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "weft/base/caught/caught.h"
#include "weft/base/deadline.h"
#include "weft/base/fault/failpoint.h"
#include "weft/comm/backend.h"
#include "weft/comm/internal/all_reduce.h"
#include "weft/comm/internal/device_call.h"
#include "weft/comm/internal/group_backend.h"
#include "weft/comm/internal/regroup_data.h"
#include "weft/comm/internal/tensor_data.h"
#include "weft/comm/internal/vector_math.h"
#include "weft/comm/internal/work.h"
#include "weft/net/memory/host.h"
#include "weft/observe/position/position.h"

namespace weft::comm {

using internal::require_apart;
using internal::to_c10d;

struct Group::State {
  State(c10::intrusive_ptr<c10d::Backend> its_backend, std::string its_name)
      : backend(std::move(its_backend)), name(std::move(its_name)) {
    if (internal::GroupBackend* const own = internal::weft_backend(*backend)) {
      beside = own;
    } else {
      other = internal::other_backend(*backend);
      beside = other.get();
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend;
  std::string name;
  std::unique_ptr<internal::GroupBackend> other;  // null: the backend is weft's
  internal::GroupBackend* beside;                 // what the backend does besides c10d's calls
  std::shared_ptr<const internal::RegroupData> regroup_data =
      std::make_shared<internal::RegroupData>();
  std::mutex mutex;                            // guards parts and attached
  std::map<std::string, int> parts;            // number of subgroups made so far, by name and ranks
  std::vector<std::weak_ptr<State>> attached;  // as by attach()

  // Returns the key of the next subgroup with these ranks and this name. All of them count alike.
  std::string place_of(const std::vector<int>& ranks, const std::string& part) {
    std::string place = "group/" + part + "/" + std::to_string(regroup_data->options.epoch);
    for (const int rank : ranks) place += "," + std::to_string(rank);
    const std::lock_guard lock(mutex);
    return place + "/" + std::to_string(parts[place]++);
  }

  // Calls `fn` with the backend of this group and of all attached ones.
  template <class Fn>
  void with_attached(const Fn& fn) {
    fn(*beside);
    std::vector<std::shared_ptr<State>> alive;
    {
      const std::lock_guard lock(mutex);
      for (const auto& one : attached) alive.push_back(one.lock());
    }
    for (const auto& one : alive) {
      if (one) one->with_attached(fn);
    }
  }

  // Fast path of in-place collectives: no Work, no c10d options. Returns false if the call must
  // take the regular path.
  bool run_now(schedule::Collective collective, const at::Tensor& tensor, ReduceOp op,
               int root) const {
    auto args = internal::plain_args(tensor);
    if (!args) return false;
    args->op = op;
    args->root = root;
    args->timeout = beside->timeout();
    return beside->run_now(collective, *args);
  }

  // Other backends, and NCCL inside weft's, may continue after the call returns. So a synchronous
  // call waits.
  static void finish(const Work& work) {
    if (work) work->wait();
  }
};

Group::Group(c10::intrusive_ptr<c10d::Backend> backend, std::string name)
    : state_(std::make_shared<State>(std::move(backend), std::move(name))) {
  // Replicas and libtorch's threads start to compute once a group exists.
  internal::settle_vector_math();
  state_->beside->name_group(state_->name);
}

Group::Group(c10::intrusive_ptr<c10d::Backend> backend, std::string name,
             std::shared_ptr<const internal::RegroupData> regroup_data)
    : Group(std::move(backend), std::move(name)) {
  state_->regroup_data = std::move(regroup_data);
}

int Group::rank() const { return state_->backend->getRank(); }
int Group::size() const { return state_->backend->getSize(); }
const std::string& Group::name() const { return state_->name; }
c10d::Backend& Group::backend() const { return *state_->backend; }
net::Host* Group::host() const { return state_->beside->host(); }
const HostSplit* Group::split() const { return state_->beside->split(); }
Group::HostRanks Group::host_ranks() const {
  if (const HostSplit* const two = split(); two != nullptr)
    return {two->local.host(), two->hosts[static_cast<std::size_t>(two->host)]};
  HostRanks all{host(), {}};
  for (int rank = 0; all.host != nullptr && rank < size(); ++rank) all.ranks.push_back(rank);
  return all;
}
bool Group::has_ordered_sums() const { return state_->beside->has_ordered_sums(); }
bool Group::has_device_backend() const { return state_->beside->has_device_backend(); }
Traffic Group::traffic() const { return state_->beside->traffic(); }
void Group::count(const Traffic& moved) const { state_->beside->count(moved); }
std::chrono::nanoseconds Group::timeout() const { return state_->beside->timeout(); }

Group Group::subgroup(const std::vector<int>& ranks, const std::string& name) const {
  const std::set<int> distinct(ranks.begin(), ranks.end());
  WEFT_REQUIRE(distinct.size() == ranks.size() && !ranks.empty() && *distinct.begin() >= 0 &&
                   *distinct.rbegin() < size(),
               "group " + name + ": its ranks must be distinct ranks of this group of " +
                   std::to_string(size()));
  WEFT_REQUIRE(distinct.count(rank()) == 1,
               "group " + name + ": rank " + std::to_string(rank()) +
                   " is not one of its ranks; only its ranks may call subgroup()");
  const std::chrono::milliseconds patience =
      std::chrono::duration_cast<std::chrono::milliseconds>(timeout());
  if (ranks.size() == 1) return Group(make_backend(nullptr, 0, 1, {.timeout = patience}), name);
  if (!state_->backend->supportsSplitting()) {
    throw Error(Errc::kUnavailable,
                "the backend " + state_->backend->getBackendName() + " does not support subgroups",
                {"subgroup", rank()});
  }
  auto store = state_->beside->store();
  if (!store) store = state_->regroup_data->store;
  if (store) store = c10::make_intrusive<c10d::PrefixStore>(state_->place_of(ranks, name), store);
  failpoint("subgroup.begin");
  Group made(state_->backend->split(store, ranks, state_->backend->getBackendOptions()), name);
  failpoint("subgroup.made");
  return made;
}

Group Group::duplicate(const std::string& name) const {
  std::vector<int> ranks(static_cast<std::size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return subgroup(ranks, name);
}

Group Group::attach(const std::string& name) const {
  if (size() == 1 || state_->other || !state_->backend->supportsSplitting()) return *this;
  Group made = duplicate(name);
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->attached, [](const auto& one) { return one.expired(); });
  state_->attached.push_back(made.state_);
  return made;
}

void Group::abort(const Error& why) const {
  state_->with_attached([&](internal::GroupBackend& backend) { backend.abort_with(why); });
}

void Group::abort() const {
  abort(Error(Errc::kAborted, "rank " + std::to_string(rank()) + " aborted the group"));
}
void Group::stop() const {
  state_->with_attached([](internal::GroupBackend& backend) { backend.stop(); });
}
Group Group::regroup(const RegroupOptions& options) const {
  return internal::regroup(*this, *state_->regroup_data, options);
}
std::uint32_t Group::epoch() const { return state_->regroup_data->options.epoch; }
const std::shared_ptr<const internal::RegroupData>& Group::regroup_data() const {
  return state_->regroup_data;
}
const std::vector<int>& Group::former_ranks() const { return state_->regroup_data->former; }

namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

template <class Options>
Options options_of(bool async) {
  Options options;
  options.asyncOp = async;
  return options;
}

}  // namespace

void Group::all_reduce(at::Tensor& tensor, ReduceOp op) const {
  if (state_->run_now(schedule::Collective::kAllReduce, tensor, op, 0)) return;
  require_apart("all_reduce", tensor);
  state_->finish(internal::all_reduce_by(*state_->backend, tensor, op, false, {}));
}

Group::Work Group::all_reduce_async(at::Tensor& tensor, ReduceOp op) const {
  require_apart("all_reduce", tensor);
  return internal::all_reduce_by(*state_->backend, tensor, op, true, {});
}

void Group::broadcast(at::Tensor& tensor, int root) const {
  if (state_->run_now(schedule::Collective::kBroadcast, tensor, ReduceOp::kSum, root)) return;
  require_apart("broadcast", tensor);
  auto options = options_of<c10d::BroadcastOptions>(false);
  options.rootRank = root;
  std::vector<at::Tensor> tensors{tensor};
  state_->finish(state_->backend->broadcast(tensors, options));
}

Group::Work Group::broadcast_async(at::Tensor& tensor, int root) const {
  require_apart("broadcast", tensor);
  auto options = options_of<c10d::BroadcastOptions>(true);
  options.rootRank = root;
  std::vector<at::Tensor> tensors{tensor};
  return state_->backend->broadcast(tensors, options);
}

void Group::all_gather(at::Tensor& output, const at::Tensor& input) const {
  require_apart("all_gather", output);
  at::Tensor in = input;
  state_->finish(
      state_->backend->_allgather_base(output, in, options_of<c10d::AllgatherOptions>(false)));
}

Group::Work Group::all_gather_async(at::Tensor& output, const at::Tensor& input) const {
  require_apart("all_gather", output);
  at::Tensor in = input;
  return state_->backend->_allgather_base(output, in, options_of<c10d::AllgatherOptions>(true));
}

void Group::reduce_scatter(at::Tensor& output, const at::Tensor& input, ReduceOp op) const {
  require_apart("reduce_scatter", output);
  auto options = options_of<c10d::ReduceScatterOptions>(false);
  options.reduceOp = to_c10d(op);
  at::Tensor in = input;
  state_->finish(state_->backend->_reduce_scatter_base(output, in, options));
}

Group::Work Group::reduce_scatter_async(at::Tensor& output, const at::Tensor& input,
                                        ReduceOp op) const {
  require_apart("reduce_scatter", output);
  auto options = options_of<c10d::ReduceScatterOptions>(true);
  options.reduceOp = to_c10d(op);
  at::Tensor in = input;
  return state_->backend->_reduce_scatter_base(output, in, options);
}

void Group::all_to_all(at::Tensor& output, const at::Tensor& input) const {
  require_apart("all_to_all", output);
  at::Tensor in = input;
  std::vector<int64_t> even;
  state_->finish(state_->backend->alltoall_base(output, in, even, even,
                                                options_of<c10d::AllToAllOptions>(false)));
}

void Group::reduce(at::Tensor& tensor, int root, ReduceOp op) const {
  require_apart("reduce", tensor);
  auto options = options_of<c10d::ReduceOptions>(false);
  options.reduceOp = to_c10d(op);
  options.rootRank = root;
  std::vector<at::Tensor> tensors{tensor};
  state_->finish(state_->backend->reduce(tensors, options));
}

std::vector<at::Tensor> Group::gather(const at::Tensor& tensor, int root) const {
  auto options = options_of<c10d::GatherOptions>(false);
  options.rootRank = root;
  std::vector<std::vector<at::Tensor>> outputs;
  if (rank() == root) {
    outputs.emplace_back();
    run_and_tell(
        [&] {
          for (int peer = 0; peer < size(); ++peer)
            outputs[0].push_back(at::empty_like(tensor, at::MemoryFormat::Contiguous));
        },
        [&](const Error& why) { abort(why); }, {"gather", rank()});
  }
  std::vector<at::Tensor> inputs{tensor};
  state_->finish(state_->backend->gather(outputs, inputs, options));
  return outputs.empty() ? std::vector<at::Tensor>{} : outputs[0];
}

void Group::scatter(at::Tensor& tensor, const std::vector<at::Tensor>& blocks, int root) const {
  require_apart("scatter", tensor);
  auto options = options_of<c10d::ScatterOptions>(false);
  options.rootRank = root;
  std::vector<std::vector<at::Tensor>> inputs;
  if (rank() == root) inputs.push_back(blocks);
  std::vector<at::Tensor> outputs{tensor};
  state_->finish(state_->backend->scatter(outputs, inputs, options));
}

void Group::send(const at::Tensor& tensor, int peer, int tag) const {
  if (internal::plain_type(tensor) && state_->beside->send_now(bytes_of(tensor), peer, tag)) return;
  std::vector<at::Tensor> tensors{tensor};
  wait(state_->backend->send(tensors, peer, tag), "send");
}

void Group::recv(at::Tensor& tensor, int peer, int tag) const {
  require_apart("recv", tensor);
  if (internal::plain_type(tensor) && state_->beside->recv_now(bytes_of(tensor), peer, tag)) return;
  // NCCL receives into contiguous tensors only.
  const bool by_device = has_device_backend() && !tensor.is_cpu();
  std::vector<at::Tensor> tensors{by_device ? internal::dense_of(tensor) : tensor};
  wait(state_->backend->recv(tensors, peer, tag), "recv");
  if (!tensors[0].is_same(tensor)) {
    const at::NoGradGuard no_grad;
    tensor.copy_(tensors[0]);
  }
}

// Endpoints of threads notice the end of a peer only through their own messages, so the host is
// checked too.
void Group::wait(const Work& work, const char* operation) const {
  if (!work) return;
  constexpr std::chrono::milliseconds kPatience(50);
  std::optional<observe::WaitScope> shown;
  if (!work->isCompleted()) shown.emplace(operation, -1);
  net::Host* const here = host();
  const auto deadline = Deadline::in(timeout());
  auto* const own = dynamic_cast<internal::WeftWork*>(work.get());
  // A wait with a timeout ends NCCL's communicator when the timeout has passed.
  while (here != nullptr && own != nullptr && !work->isCompleted()) {
    if (deadline.passed()) own->expire();
    try {
      work->wait(kPatience);
    } catch (const c10::Error&) {  // not complete yet, or failed: wait() below throws it
      if (work->isCompleted()) break;
      here->check(operation);
    }
  }
  work->wait();
}

void Group::barrier() const {
  if (state_->beside->run_now(schedule::Collective::kBarrier, {.timeout = timeout()})) return;
  state_->finish(state_->backend->barrier(options_of<c10d::BarrierOptions>(false)));
}

}  // namespace weft::comm
