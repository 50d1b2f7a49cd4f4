#include "codec_hook.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/comm/backend.h"

namespace weft::python {
namespace {

at::ScalarType scalar_type(DType type) {
  constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kHalf,  at::kBFloat16,
                                       at::kLong,   at::kInt,   at::kShort, at::kChar,
                                       at::kByte,   at::kBool};
  return kTypes[static_cast<int>(type)];
}

compress::Spec parse(const std::string& text) {
  const auto spec = compress::parse(text);
  WEFT_REQUIRE(spec.kind != compress::Kind::kAuto,
               "a communication hook needs one codec; only weft's own trainer supports \"auto\"");
  return spec;
}

template <class Options>
Options synchronous() {
  Options options;
  options.asyncOp = false;
  return options;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> duplicate(const c10::intrusive_ptr<c10d::Backend>& parent,
                                            const c10::intrusive_ptr<c10d::Store>& store) {
  const auto options = parent->getBackendOptions();
  if (parent->getSize() == 1)
    return comm::make_backend(nullptr, 0, 1, {.timeout = options->timeout});
  std::vector<int> ranks(static_cast<std::size_t>(parent->getSize()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return parent->split(store, ranks, options);
}

CodecHook::CodecHook(c10::intrusive_ptr<c10d::Backend> backend, const std::string& spec)
    : backend_(std::move(backend)),
      spec_(parse(spec)),
      process_(getpid()),
      thread_([this] { work(); }) {}

CodecHook::~CodecHook() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

c10::intrusive_ptr<c10d::Work> CodecHook::average(Bucket bucket) {
  WEFT_REQUIRE(getpid() == process_,
               "this process was forked from the one that made the codec; make a codec after the "
               "fork");
  WEFT_REQUIRE(bucket.values.scalar_type() == at::kFloat && bucket.values.is_contiguous() &&
                   bucket.values.device().is_cpu(),
               "codecs need contiguous float32 gradients on the CPU, but this bucket is " +
                   bucket.values.toString());
  auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(bucket), done});
  }
  wake_.notify_all();
  return c10d::Work::create_from_future(done);
}

void CodecHook::work() {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    try {
      reduce(task.bucket);
      task.done->markCompleted(task.bucket.values);
    } catch (...) {
      task.done->setError(std::current_exception());
    }
    lock.lock();
  }
}

void CodecHook::reduce(const Bucket& bucket) {
  Unit& unit = units_[bucket.index];
  if (unit.step == 0 ||
      unit.count != bucket.values.numel()) {  // first time, or DDP has regrouped its buckets
    sum(bucket.values, c10d::ReduceOp::SUM);
    unit = {nullptr, bucket.values.numel(), unit.step + 1};
  } else {
    if (unit.reducer == nullptr) unit = make_unit(bucket, unit);
    unit.reducer->begin(bucket.values.mutable_data_ptr<float>(), unit.step++);
    while (const auto round = unit.reducer->next()) exchange(*round);
  }
  bucket.values.div_(backend_->getSize());
}

CodecHook::Unit CodecHook::make_unit(const Bucket& bucket, const Unit& before) {
  compress::Unit layout{.count = bucket.values.numel(),
                        .rank = backend_->getRank(),
                        .world = backend_->getSize(),
                        .id = static_cast<std::uint32_t>(bucket.index)};
  for (const auto& gradient : bucket.gradients) {
    const auto first = gradient.const_data_ptr<float>() - bucket.values.const_data_ptr<float>();
    const std::int64_t rows = gradient.dim() >= 2 ? gradient.size(0) : gradient.numel();
    layout.matrices.push_back({first, rows, rows > 0 ? gradient.numel() / rows : 1});
  }
  Unit unit{compress::make_reducer(spec_, layout), layout.count, before.step};
  const auto found = loaded_.find(bucket.index);
  const bool is_loaded = found != loaded_.end();
  const bool fits = !is_loaded || restore(found->second, unit);
  require_alike(unit, is_loaded, fits);
  if (is_loaded) loaded_.erase(found);
  return unit;
}

bool CodecHook::restore(const Saved& saved, Unit& unit) {
  const auto memory = unit.reducer->state();
  bool fits = saved.step >= 0 && saved.count == unit.count && saved.memory.size() == memory.size();
  for (std::size_t i = 0; fits && i < memory.size(); ++i)
    fits = saved.memory[i].numel() == static_cast<std::int64_t>(memory[i].size()) &&
           saved.memory[i].scalar_type() == at::kFloat;
  if (!fits) return false;
  for (std::size_t i = 0; i < memory.size(); ++i)
    std::memcpy(memory[i].data(), saved.memory[i].contiguous().const_data_ptr<float>(),
                memory[i].size_bytes());
  unit.step = saved.step;
  return true;
}

// One small all-reduce for each bucket, when its codec is made. Without it, the ranks' averages
// could differ, and nobody would notice: randomk draws by the step, and delta adds to sums that all
// ranks must have alike.
void CodecHook::require_alike(const Unit& unit, bool is_loaded, bool fits) {
  std::uint32_t digest = 0;
  for (const auto& common : unit.reducer->common_state())
    digest = crc32c(common.data(), common.size_bytes(), digest);
  const std::int64_t loaded = is_loaded ? 1 : 0, common = digest;
  const at::Tensor most = at::tensor({fits ? std::int64_t{0} : std::int64_t{1}, loaded, -loaded,
                                      unit.step, -unit.step, common, -common},
                                     at::kLong);
  sum(most, c10d::ReduceOp::MAX);
  const std::int64_t* const max = most.const_data_ptr<std::int64_t>();
  WEFT_REQUIRE(max[0] == 0,
               "the codec state that a rank has loaded belongs to other buckets: the model, "
               "bucket_cap_mb or the number of ranks has changed");
  WEFT_REQUIRE(max[1] == -max[2],
               "some ranks have loaded a codec state and others have not: call load_state_dict() "
               "on all ranks");
  WEFT_REQUIRE(max[3] == -max[4],
               "the ranks have loaded codec states of different steps, from step " +
                   std::to_string(-max[4]) + " to " + std::to_string(max[3]) +
                   ": load those that were saved together");
  WEFT_REQUIRE(max[5] == -max[6],
               "the ranks have loaded codec states that were not saved together: the part that is "
               "the same on all ranks differs");
}

void CodecHook::sum(const at::Tensor& values, c10d::ReduceOp op) {
  auto how = synchronous<c10d::AllreduceOptions>();
  how.reduceOp = std::move(op);
  std::vector<at::Tensor> tensors{values};
  backend_->allreduce(tensors, how);
}

void CodecHook::exchange(const compress::Round& round) {
  using How = compress::Round::How;
  const auto options = at::TensorOptions().dtype(scalar_type(round.dtype));
  const bool reduces = round.how == How::kSum || round.how == How::kMax;
  const std::int64_t world = backend_->getSize();
  at::Tensor data =
      at::from_blob(round.data, {reduces ? round.count : world * round.count}, options);
  if (reduces) return sum(data, round.how == How::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX);
  const bool gathers = round.how == How::kAllGather;
  at::Tensor send = at::from_blob(const_cast<void*>(round.send),
                                  {gathers ? round.count : world * round.count}, options);
  std::vector<std::int64_t> even;
  if (gathers) {
    backend_->_allgather_base(data, send, synchronous<c10d::AllgatherOptions>());
  } else {
    backend_->alltoall_base(data, send, even, even, synchronous<c10d::AllToAllOptions>());
  }
}

CodecHook::State CodecHook::state() const {
  State state = loaded_;
  for (const auto& [index, unit] : units_) {
    if (unit.reducer == nullptr) continue;
    Saved& saved = state[index] = {unit.step, unit.count, {}};
    for (const auto& memory : unit.reducer->state())
      saved.memory.push_back(
          at::from_blob(memory.data(), {static_cast<std::int64_t>(memory.size())}, at::kFloat)
              .clone());
  }
  return state;
}

void CodecHook::load(State state) {
  loaded_ = std::move(state);
  units_.clear();
}

}  // namespace weft::python
