#include "weft/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/checkpoint/internal/dtypes.h"
#include "weft/checkpoint/internal/file_writer.h"
#include "weft/checkpoint/internal/input_file.h"

namespace weft::checkpoint {
namespace {

using internal::Entry;
using internal::Header;

Header header_of(const TensorFile& file) {
  Header header{{}, file.metadata};
  for (const auto& [name, tensor] : file.tensors) {
    WEFT_REQUIRE(name != "__metadata__", "save_safetensors: no tensor can be called __metadata__");
    header.entries.push_back({name, internal::dtype_of(name, tensor), tensor.sizes().vec()});
  }
  internal::lay_out(header.entries);
  return header;
}

}  // namespace

void save_safetensors(const std::string& path, const TensorFile& file) {
  internal::replace_file(path, [&](internal::FileWriter& out) {
    const Header header = header_of(file);
    out.write(render_header(header));
    for (const Entry& entry : header.entries) {
      const at::Tensor flat = file.tensors.at(entry.name).detach().cpu().resolve_neg().contiguous();
      out.write({static_cast<const char*>(flat.const_data_ptr()),
                 static_cast<std::size_t>(entry.end - entry.begin)});
    }
  });
}

struct TensorReader::State {
  explicit State(const std::string& path) : map(std::make_unique<internal::InputFile>(path), path) {
    for (const Entry& entry : map.header.entries) {
      sizes.emplace(entry.name, entry.shape);
      entries.emplace(entry.name, &entry);
    }
  }

  const internal::TensorFileMap map;
  std::map<std::string, const Entry*> entries;
  std::map<std::string, std::vector<std::int64_t>> sizes;
};

TensorReader::TensorReader(const std::string& path) : state_(std::make_unique<const State>(path)) {}
TensorReader::TensorReader(TensorReader&&) noexcept = default;
TensorReader::~TensorReader() = default;

const StringMap& TensorReader::metadata() const { return state_->map.header.metadata; }
const std::map<std::string, std::vector<std::int64_t>>& TensorReader::sizes() const {
  return state_->sizes;
}

at::Tensor TensorReader::read(const std::string& name) const {
  const auto found = state_->sizes.find(name);
  const bool scalar = found != state_->sizes.end() && found->second.empty();
  return read(name, 0, 0, found == state_->sizes.end() || scalar ? 1 : found->second[0]);
}

at::Tensor TensorReader::read(const std::string& name, std::int64_t dim, std::int64_t begin,
                              std::int64_t count) const {
  const internal::InputFile& in = *state_->map.in;
  const auto found = state_->entries.find(name);
  WEFT_REQUIRE(found != state_->entries.end(),
               "TensorReader: the file has no tensor \"" + name + "\"");
  const Entry& entry = *found->second;
  std::vector<std::int64_t> shape = entry.shape;
  const bool scalar = shape.empty();
  if (scalar) shape = {1};  // a scalar can only be read whole
  const bool there = dim >= 0 && dim < static_cast<std::int64_t>(shape.size()) && begin >= 0 &&
                     count >= 0 && count <= shape[static_cast<std::size_t>(dim)] &&
                     begin <= shape[static_cast<std::size_t>(dim)] - count;
  WEFT_REQUIRE(there, "TensorReader: \"" + name + "\" has no entries [" + std::to_string(begin) +
                          ", " + std::to_string(begin) + " + " + std::to_string(count) +
                          ") along dimension " + std::to_string(dim));
  std::int64_t rows = 1, entry_bytes = static_cast<std::int64_t>(size_of(entry.dtype));
  for (std::int64_t d = 0; d < dim; ++d) rows *= shape[static_cast<std::size_t>(d)];
  for (std::size_t d = static_cast<std::size_t>(dim) + 1; d < shape.size(); ++d)
    entry_bytes *= shape[d];
  const std::int64_t row_bytes = shape[static_cast<std::size_t>(dim)] * entry_bytes,
                     part_bytes = count * entry_bytes;

  shape[static_cast<std::size_t>(dim)] = count;
  at::Tensor tensor =
      at::empty(shape, at::TensorOptions().dtype(internal::torch_type_of(entry.dtype)));
  auto* const data = static_cast<unsigned char*>(tensor.data_ptr());
  const std::int64_t first = state_->map.data_begin + entry.begin + begin * entry_bytes;
  if (part_bytes == row_bytes) {
    in.read(data, rows * part_bytes, first);
  } else {
    for (std::int64_t row = 0; row < rows; ++row)
      in.read(data + row * part_bytes, part_bytes, first + row * row_bytes);
  }
  const bool odd =
      entry.dtype == DType::kBool &&
      std::any_of(data, data + rows * part_bytes, [](unsigned char value) { return value > 1; });
  if (odd) in.fail("tensor \"" + entry.name + "\" has a boolean that is neither 0 nor 1");
  return scalar ? tensor.view(at::IntArrayRef{}) : tensor;
}

TensorFile load_safetensors(const std::string& path) {
  const TensorReader in(path);
  TensorFile file{{}, in.metadata()};
  for (const auto& [name, sizes] : in.sizes()) file.tensors.emplace(name, in.read(name));
  return file;
}

}  // namespace weft::checkpoint
