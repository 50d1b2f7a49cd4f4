#include "weft/engine/codec_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace weft::parallel {
namespace {

std::int64_t length_of(const std::vector<std::span<float>>& memory) {
  std::size_t length = 0;
  for (const auto& part : memory) length += part.size();
  return static_cast<std::int64_t>(length);
}

std::string memory_name(int rank) { return "memory." + std::to_string(rank); }

const at::Tensor* find(const NamedTensors& state, const std::string& name) {
  for (const auto& [key, tensor] : state) {
    if (key == name) return &tensor;
  }
  return nullptr;
}

const at::Tensor& get(const NamedTensors& state, const std::string& name, at::ScalarType type) {
  const at::Tensor* const tensor = find(state, name);
  if (tensor == nullptr || tensor->scalar_type() != type || !tensor->is_contiguous()) {
    throw Error(Errc::kCorrupt, "the codec's state in the checkpoint has no proper '" + name + "'");
  }
  return *tensor;
}

}  // namespace

NamedTensors gather_codec_state(const Group& group, const CodecProgress& progress, const std::vector<std::span<float>>& memory) {
  at::Tensor own_length = at::full({1}, length_of(memory), at::kLong), lengths = at::empty({group.size()}, at::kLong);
  group.all_gather(lengths, own_length);
  at::Tensor own = at::zeros({lengths.max().item<std::int64_t>()});
  float* out = own.data_ptr<float>();
  for (const auto& part : memory) out = std::copy(part.begin(), part.end(), out);
  const auto all = group.gather(own, 0);
  if (group.rank() != 0) return {};

  const std::string text = compress::to_string(progress.spec);
  at::Tensor spec = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(spec.data_ptr(), text.data(), text.size());
  NamedTensors state{{"spec", spec}, {"step", at::full({1}, progress.step, at::kLong)}, {"layout", at::tensor(progress.layout, at::kLong)}};
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    state.emplace_back(memory_name(rank), all[at].narrow(0, 0, lengths[rank].item<std::int64_t>()).clone());
  }
  return state;
}

std::optional<CodecProgress> read_codec_progress(const Group& group, const NamedTensors& state) {
  if (find(state, "layout") == nullptr) return std::nullopt;  // of an earlier version
  const at::Tensor& text = get(state, "spec", at::kByte);
  const at::Tensor& step = get(state, "step", at::kLong);
  const at::Tensor& layout = get(state, "layout", at::kLong);
  if (step.numel() != 1) throw Error(Errc::kCorrupt, "the codec's state in the checkpoint has no proper 'step'");
  CodecProgress progress;
  progress.spec = compress::parse({static_cast<const char*>(text.const_data_ptr()), static_cast<std::size_t>(text.numel())});
  progress.step = step.item<std::int64_t>();
  const auto* const numbers = layout.const_data_ptr<std::int64_t>();
  progress.layout.assign(numbers, numbers + layout.numel());
  const bool same_world = find(state, memory_name(group.size() - 1)) != nullptr && find(state, memory_name(group.size())) == nullptr;
  return same_world ? std::optional(progress) : std::nullopt;
}

bool restore_codec_memory(const Group& group, const NamedTensors& state, const std::vector<std::span<float>>& memory) {
  const at::Tensor& saved = get(state, memory_name(group.rank()), at::kFloat);
  at::Tensor fits = at::full({1}, saved.numel() == length_of(memory) ? 1 : 0, at::kLong);
  group.all_reduce(fits, ReduceOp::kMin);
  if (fits.item<std::int64_t>() == 0) return false;
  const float* from = saved.const_data_ptr<float>();
  for (const auto& part : memory) {
    std::copy(from, from + part.size(), part.begin());
    from += part.size();
  }
  return true;
}

}  // namespace weft::parallel
