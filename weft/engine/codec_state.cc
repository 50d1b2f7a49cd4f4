#include "weft/engine/codec_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "weft/comm/texts.h"

namespace weft::engine {
namespace {

constexpr const char* kPart = "codec";
const comm::TogetherOptions kWords{.operation = "load_codec",
                                   .failed = "cannot load the codec's memory"};

std::string memory_name(int rank) { return "memory." + std::to_string(rank); }

at::Tensor vector_of(const checkpoint::Reader& saved, const std::string& name,
                     at::ScalarType type) {
  const auto& shapes = saved.shapes(kPart);
  const auto shape = shapes.find(name);
  if (shape == shapes.end() || shape->second.size() != 1 || saved.dtype(kPart, name) != type) {
    throw Error(Errc::kCorrupt, "the codec's state in the checkpoint has no proper '" + name + "'");
  }
  return saved.read(kPart, name);
}

// One slice for each buffer, concatenated.
checkpoint::Slices slices_of(int rank, const std::vector<std::span<float>>& memory) {
  std::int64_t length = 0, at = 0;
  for (const auto& part : memory) length += static_cast<std::int64_t>(part.size());
  checkpoint::Slices slices;
  for (const auto& part : memory) {
    const auto count = static_cast<std::int64_t>(part.size());
    if (count > 0)
      slices.push_back({memory_name(rank), {length}, {at}, at::from_blob(part.data(), {count})});
    at += count;
  }
  if (slices.empty()) slices.push_back(checkpoint::whole_slice(memory_name(rank), at::empty({0})));
  return slices;
}

}  // namespace

checkpoint::Slices codec_slices(const Group& group, const CodecProgress& progress,
                                const std::vector<std::span<float>>& memory) {
  checkpoint::Slices slices = slices_of(group.rank(), memory);
  if (group.rank() != 0) return slices;
  const std::string text = compress::to_string(progress.spec);
  at::Tensor spec = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(spec.data_ptr(), text.data(), text.size());
  slices.push_back(checkpoint::whole_slice("spec", spec));
  slices.push_back(checkpoint::whole_slice("step", at::full({1}, progress.step, at::kLong)));
  slices.push_back(checkpoint::whole_slice("layout", at::tensor(progress.layout, at::kLong)));
  return slices;
}

std::optional<CodecProgress> read_codec_progress(const Group& group,
                                                 const checkpoint::Reader& saved) {
  const auto parts = saved.parts();
  if (std::find(parts.begin(), parts.end(), kPart) == parts.end()) return std::nullopt;
  const auto& shapes = saved.shapes(kPart);
  if (!shapes.contains("layout")) return std::nullopt;  // written by an earlier version
  if (!shapes.contains(memory_name(group.size() - 1)) || shapes.contains(memory_name(group.size())))
    return std::nullopt;
  const at::Tensor text = vector_of(saved, "spec", at::kByte),
                   step = vector_of(saved, "step", at::kLong);
  const at::Tensor layout = vector_of(saved, "layout", at::kLong);
  if (step.numel() != 1)
    throw Error(Errc::kCorrupt, "the codec's state in the checkpoint has no valid 'step'");
  CodecProgress progress;
  progress.spec = compress::parse(
      {static_cast<const char*>(text.const_data_ptr()), static_cast<std::size_t>(text.numel())});
  progress.step = step.item<std::int64_t>();
  const auto* const numbers = layout.const_data_ptr<std::int64_t>();
  progress.layout.assign(numbers, numbers + layout.numel());
  return progress;
}

std::optional<CodecProgress> agree_on_codec_progress(
    const Group& group, const checkpoint::Reader& saved,
    const std::function<bool(const CodecProgress&)>& fits) {
  std::optional<CodecProgress> progress;
  comm::together(
      group,
      [&] {
        progress = read_codec_progress(group, saved);
        if (progress && !fits(*progress)) progress.reset();
      },
      kWords);
  if (!comm::holds_on_all(group, progress.has_value())) progress.reset();
  return progress;
}

bool restore_codec_memory(const Group& group, const checkpoint::Reader& saved,
                          const std::vector<std::span<float>>& memory) {
  const checkpoint::Slices slices = slices_of(group.rank(), memory);
  const auto& shape = saved.shapes(kPart).at(slices[0].name);
  if (!comm::holds_on_all(group, shape == slices[0].shape)) return false;
  comm::together(
      group, [&] { saved.fill(kPart, slices); }, kWords);
  return true;
}

}  // namespace weft::engine
