#include "weft/parallel/compose/internal/own_modules.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <locale>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/comm/texts.h"
#include "weft/engine/parameter_cuts.h"
#include "weft/parallel/compose/internal/passes.h"

namespace weft::parallel::internal {
namespace {

constexpr std::int64_t kMessageBytes = std::int64_t{16} << 20;
constexpr const char* kAdvice =
    "call ParallelModel::gather(), which Trainer::run() does at its end, or Trainer::save() and "
    "weft::load_weights()";

std::string without_values(const std::string& name, const std::string& advice) {
  return "'" + name + "' has no trained values on this rank, since other ranks train it; " + advice;
}

// Names of a block's tensors in the whole model.
std::string whole_name_of(const BlockSpec& spec, const std::string& name,
                          const at::Tensor& tensor) {
  if (const std::string* const shared = tied_name(*spec.own, tensor)) return *shared;
  const std::string& prefix = spec.own->prefix ? *spec.own->prefix : spec.name;
  return prefix.empty() ? name : prefix + "." + name;
}

// "name\ntype\ndimensions\noffset size …\n" of each.
std::string announcement_of(const checkpoint::Slices& slices) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  for (const checkpoint::Slice& slice : slices) {
    out << slice.name << '\n'
        << static_cast<int>(slice.tensor.scalar_type()) << ' ' << slice.tensor.dim();
    for (std::int64_t dim = 0; dim < slice.tensor.dim(); ++dim)
      out << ' ' << slice.offset[static_cast<std::size_t>(dim)] << ' ' << slice.tensor.size(dim);
    out << '\n';
  }
  return out.str();
}

// A slice of another rank, without values.
struct Announced {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> offset, sizes;

  std::int64_t bytes() const {
    std::int64_t count = static_cast<std::int64_t>(c10::elementSize(type));
    for (const std::int64_t size : sizes) count *= size;
    return count;
  }
  std::int64_t padded() const { return (bytes() + 15) / 16 * 16; }
};

std::vector<Announced> parse_announcement(const std::string& text) {
  std::vector<Announced> all;
  std::istringstream in(text);
  for (Announced one; std::getline(in, one.name);) {
    int type = 0;
    std::size_t dims = 0;
    in >> type >> dims;
    one.type = static_cast<at::ScalarType>(type);
    one.offset.assign(dims, 0);
    one.sizes.assign(dims, 0);
    for (std::size_t dim = 0; dim < dims; ++dim) in >> one.offset[dim] >> one.sizes[dim];
    in.ignore(1);
    all.push_back(one);
  }
  return all;
}

using Take = std::function<void(const Announced& slice, const at::Tensor& values)>;

// Broadcasts one rank's slices, several small ones in a message. `mine` is read on that rank.
void broadcast_slices(const Group& world, int root, const std::vector<Announced>& slices,
                      const checkpoint::Slices& mine, const Take& take) {
  for (std::size_t begin = 0, end = 0; begin < slices.size(); begin = end) {
    std::int64_t bytes = 0;
    for (; end < slices.size(); ++end) {
      if (end > begin && bytes + slices[end].padded() > kMessageBytes) break;
      bytes += slices[end].padded();
    }
    at::Tensor message = at::empty({bytes}, at::kByte);
    std::int64_t at = 0;
    const auto part = [&](const Announced& slice) {
      auto* const data = static_cast<std::byte*>(message.data_ptr()) + at;
      at += slice.padded();
      return at::from_blob(data, slice.sizes, at::TensorOptions(slice.type));
    };
    for (std::size_t i = begin; root == world.rank() && i < end; ++i)
      part(slices[i]).copy_(mine[i].tensor.detach());
    if (bytes > 0) world.broadcast(message, root);
    at = 0;
    for (std::size_t i = begin; i < end; ++i) take(slices[i], part(slices[i]));
  }
}

at::Tensor narrowed(at::Tensor tensor, const std::vector<std::int64_t>& offset,
                    at::IntArrayRef sizes) {
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    tensor = tensor.narrow(static_cast<std::int64_t>(dim), offset[dim], sizes[dim]);
  return tensor;
}

// Unlike Storage::is_alias_of(), it reads no address, which a refusing tensor does not have.
bool is_one(const c10::Storage& a, const c10::Storage& b) {
  return a.unsafeGetStorageImpl() == b.unsafeGetStorageImpl();
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return is_one(a.storage(), b.storage());
}

std::uint32_t checksum_of(const at::Tensor& tensor) {
  if (!checkpoint::has_values(tensor)) return 0;
  const at::Tensor values = tensor.detach().cpu().contiguous();
  return crc32c(values.const_data_ptr(), values.nbytes());
}

// A program may load values into it.
at::Tensor loadable_refusal(const at::Tensor& like, const std::string& why) {
  at::Tensor tensor = engine::refusing(like, why);
  engine::refuse(tensor, why);
  return tensor;
}

}  // namespace

// The models of this process that have a tensor.
class OwnModules::Claim {
 public:
  explicit Claim(std::vector<const c10::TensorImpl*> tensors) : tensors_(std::move(tensors)) {
    add(1);
  }
  ~Claim() { add(-1); }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // False if another model has one too.
  bool is_sole() {
    const std::lock_guard lock(mutex());
    if (std::exchange(seen_, changes()) != changes()) {
      is_sole_ = std::all_of(tensors_.begin(), tensors_.end(),
                             [](const c10::TensorImpl* tensor) { return models()[tensor] == 1; });
    }
    return is_sole_;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex& one = *new std::mutex;  // models may outlive static variables
    return one;
  }
  // Their number by tensor, and a number that changes with them.
  static std::map<const c10::TensorImpl*, int>& models() {
    static auto& all = *new std::map<const c10::TensorImpl*, int>;
    return all;
  }
  static std::int64_t& changes() {
    static std::int64_t count = 0;
    return count;
  }
  void add(int model) {
    const std::lock_guard lock(mutex());
    ++changes();
    for (const c10::TensorImpl* const tensor : tensors_) {
      if ((models()[tensor] += model) == 0) models().erase(tensor);
    }
  }

  const std::vector<const c10::TensorImpl*> tensors_;
  std::int64_t seen_ = 0;
  bool is_sole_ = true;
};

OwnModules::OwnModules(const BlockModel& model, const std::vector<Stage>& stages) {
  std::set<const c10::TensorImpl*> known;
  const auto list = [&](const BlockSpec& spec, std::vector<Named>& into) {
    if (!spec.own) return;
    const auto add = [&](const std::string& name, const at::Tensor& tensor) {
      if (known.insert(tensor.unsafeGetTensorImpl()).second)
        into.push_back({whole_name_of(spec, name, tensor), tensor});
    };
    for (const auto& item : spec.own->module->named_parameters()) add(item.key(), item.value());
    for (const auto& item : spec.own->module->named_buffers()) add(item.key(), item.value());
  };
  std::vector<bool> here(model.blocks.size());
  for (const Stage& stage : stages) {
    for (std::size_t i = 0; i < stage.names.size(); ++i)
      here[static_cast<std::size_t>(stage.first) + i] = true;
  }
  // First this rank's: a weight that it shares with another stage is up to date here.
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (here[i]) list(model.blocks[i], trained_);
  }
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (!here[i]) list(model.blocks[i], elsewhere_);
  }
  if (!known.empty()) claim_ = std::make_shared<Claim>(std::vector(known.begin(), known.end()));
  forget_loads();
}

void OwnModules::forget_loads() {
  for (auto* const list : {&trained_, &elsewhere_}) {
    for (Named& one : *list) {
      one.memory = one.tensor.storage();
      one.loaded = false;
    }
  }
}

void OwnModules::note_loads() {
  for (auto* const list : {&trained_, &elsewhere_}) {
    for (Named& one : *list) one.loaded = one.loaded || !is_one(one.tensor.storage(), one.memory);
  }
}

bool OwnModules::has_loaded_elsewhere() const {
  return std::any_of(elsewhere_.begin(), elsewhere_.end(),
                     [](const Named& one) { return one.loaded; });
}

void OwnModules::check_loads(const Group& world) const {
  std::string mine;
  for (const auto* const list : {&trained_, &elsewhere_}) {
    for (const Named& one : *list) {
      if (one.loaded) mine += (list == &trained_ ? '+' : '-') + one.name + '\n';
    }
  }
  std::set<std::string> taken;
  std::map<std::string, std::size_t> elsewhere;
  const auto texts = comm::all_gather_texts(world, mine);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream lines(texts[rank]);
    for (std::string line; std::getline(lines, line);) {
      const std::string name = line.substr(1);
      line[0] == '+' ? static_cast<void>(taken.insert(name))
                     : static_cast<void>(elsewhere.emplace(name, rank));
    }
  }
  for (const auto& [name, rank] : elsewhere) {
    WEFT_REQUIRE(taken.contains(name),
                 "'" + name + "' was loaded on rank " + std::to_string(rank) +
                     ", but not on the ranks that train it; load weights on all ranks");
  }
}

// The program may have given them values, as by torch::load() of the whole model.
void OwnModules::forget() {
  reattach();
  is_whole_ = false;
  const at::NoGradGuard no_grad;
  for (Named& one : elsewhere_) {
    if (!one.refusal.defined())
      one.refusal = loadable_refusal(one.tensor, without_values(one.name, kAdvice));
    if (!share_memory(one.tensor, one.refusal)) one.tensor.set_data(one.refusal);
  }
  forget_loads();
}

void OwnModules::detach(Named& one, const at::Tensor& values) {
  const bool is_trained = &one >= trained_.data() && &one < trained_.data() + trained_.size();
  if (is_trained && !one.view.defined()) one.view = one.tensor.variable_data();
  if (is_trained) {
    one.given = values;
    one.checksum = checksum_of(values);
  }
  detached_ = detached_ || is_trained;
  one.tensor.set_data(values);
}

void OwnModules::reattach() {
  if (!std::exchange(detached_, false)) return;
  const at::NoGradGuard no_grad;
  for (Named& one : trained_) {
    if (one.view.defined()) {
      one.tensor.set_data(std::exchange(one.view, at::Tensor()));
      one.memory = one.tensor.storage();
    }
    one.given.reset();
  }
}

void OwnModules::attach() {
  WEFT_REQUIRE(!claim_ || claim_->is_sole(),
               "train_step: another ParallelModel has some of this model's modules, so both would "
               "take their gradients; end the other one first");
  note_loads();
  for (Named& one : trained_) {
    if (one.view.defined() &&
        (!share_memory(one.tensor, one.given) || checksum_of(one.given) != one.checksum))
      one.view.reset();
  }
  reattach();
}

std::vector<OwnModules::Named*> OwnModules::missing() {
  std::vector<Named*> all;
  for (Named& one : trained_) {
    if (!checkpoint::has_values(one.tensor)) all.push_back(&one);
  }
  for (Named& one : elsewhere_) {
    if (!is_whole_) all.push_back(&one);
  }
  return all;
}

std::int64_t OwnModules::missing_bytes() const {
  std::int64_t bytes = 0;
  for (const auto* const list : {&trained_, &elsewhere_}) {
    for (const Named& one : *list)
      bytes +=
          checkpoint::has_values(one.tensor) ? 0 : static_cast<std::int64_t>(one.tensor.nbytes());
  }
  return bytes;
}

void OwnModules::gather(const Group& world, const checkpoint::Slices& mine) {
  const at::NoGradGuard no_grad;
  const std::vector<Named*> wanted = missing();
  at::Tensor any = at::tensor({wanted.empty() ? 0 : 1, has_loaded_elsewhere() ? 1 : 0}, at::kInt);
  if (world.size() > 1) world.all_reduce(any, ReduceOp::kMax);
  if (any[1].item<int>() != 0) check_loads(world);
  if (any[0].item<int>() == 0) return;
  struct Whole {
    Named* of;
    at::Tensor values;
    std::int64_t filled = 0;
  };
  std::multimap<std::string, Whole> wholes;
  for (Named* const one : wanted) {
    const at::Tensor& tensor = one->tensor;
    wholes.emplace(one->name,
                   Whole{one, at::empty(tensor.sizes(), tensor.options().requires_grad(false))});
  }
  const Take take = [&](const Announced& slice, const at::Tensor& values) {
    const auto [begin, end] = wholes.equal_range(slice.name);
    for (auto whole = begin; whole != end; ++whole) {
      narrowed(whole->second.values, slice.offset, slice.sizes).copy_(values);
      whole->second.filled += values.numel();
    }
  };
  const auto texts = comm::all_gather_texts(world, announcement_of(mine));
  for (int root = 0; root < world.size(); ++root)
    broadcast_slices(world, root, parse_announcement(texts[static_cast<std::size_t>(root)]), mine,
                     take);
  for (const auto& [name, whole] : wholes)
    WEFT_CHECK(whole.filled == whole.values.numel(), "gather: no rank has all of '" + name + "'");
  for (auto& [name, whole] : wholes) detach(*whole.of, whole.values);
  is_whole_ = true;
  forget_loads();
}

void OwnModules::refuse(const std::string& advice) {
  const at::NoGradGuard no_grad;
  for (Named* const one : missing())
    detach(*one, loadable_refusal(one->tensor, without_values(one->name, advice)));
  forget_loads();
}

}  // namespace weft::parallel::internal
