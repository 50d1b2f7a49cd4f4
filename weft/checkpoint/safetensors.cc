#include "weft/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/internal/header.h"
#include "weft/checkpoint/internal/write_tensors.h"

namespace weft::checkpoint {
namespace {

using internal::Entry;
using internal::Header;
using internal::kLengthBytes;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::pair<at::ScalarType, DType> kTypes[] = {
    {at::kDouble, DType::kF64}, {at::kFloat, DType::kF32}, {at::kHalf, DType::kF16},  {at::kBFloat16, DType::kBF16},
    {at::kLong, DType::kI64},   {at::kInt, DType::kI32},   {at::kShort, DType::kI16}, {at::kChar, DType::kI8},
    {at::kByte, DType::kU8},    {at::kBool, DType::kBool},
};

DType dtype_of(const std::string& name, const at::Tensor& tensor) {
  WEFT_REQUIRE(tensor.defined() && tensor.layout() == at::kStrided, "save_safetensors: \"" + name + "\" is undefined or not dense");
  for (const auto& [torch_type, dtype] : kTypes) {
    if (tensor.scalar_type() == torch_type) return dtype;
  }
  throw Error(Errc::kInvalidArgument, "save_safetensors: \"" + name + "\" has dtype " + c10::toString(tensor.scalar_type()) +
                                          ", which is not among those that are written");
}

at::ScalarType torch_type_of(DType dtype) {
  return std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& pair) { return pair.second == dtype; })->first;
}

// Widest dtype first, so that each tensor starts at a multiple of its element; then by name.
Header plan(const TensorFile& file) {
  Header header{{}, file.metadata};
  for (const auto& [name, tensor] : file.tensors) {
    WEFT_REQUIRE(name != "__metadata__", "save_safetensors: no tensor can be called __metadata__");
    header.entries.push_back({name, dtype_of(name, tensor), tensor.sizes().vec()});
  }
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const Entry& a, const Entry& b) { return size_of(a.dtype) > size_of(b.dtype); });
  std::int64_t at = 0;
  for (Entry& entry : header.entries) {
    entry.begin = at;
    entry.end = at += internal::bytes_of(entry.dtype, entry.shape);
  }
  return header;
}

// A file opened once; what was true of its size then must stay true.
class InputFile {
 public:
  explicit InputFile(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!fd_) fail_io("cannot open", path_);
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0) fail_io("cannot read", path_);
    if (!S_ISREG(status.st_mode)) fail("is not a regular file");
    bytes_ = status.st_size;
  }

  std::int64_t bytes() const { return bytes_; }

  void read(void* out, std::int64_t bytes, std::int64_t offset) const {
    auto* to = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t got = ::pread(fd_.get(), to, static_cast<std::size_t>(bytes), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_io("cannot read", path_);
      if (got == 0) fail("offset " + std::to_string(offset) + ": the file shrank while it was read");
      to += got;
      bytes -= got;
      offset += got;
    }
  }

  [[noreturn]] void fail(const std::string& what) const { throw Error(Errc::kCorrupt, path_ + ": " + what); }

 private:
  std::string path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
};

std::int64_t read_header_bytes(const InputFile& in) {
  if (in.bytes() < kLengthBytes) in.fail("truncated: " + std::to_string(in.bytes()) + " bytes are no safetensors file");
  std::uint64_t length = 0;
  in.read(&length, kLengthBytes, 0);
  if (length > static_cast<std::uint64_t>(internal::kMaxHeaderBytes) || length > static_cast<std::uint64_t>(in.bytes() - kLengthBytes)) {
    in.fail("offset 0: announces a header of " + std::to_string(length) + " bytes in a file of " + std::to_string(in.bytes()));
  }
  return static_cast<std::int64_t>(length);
}

}  // namespace

namespace internal {

void write_tensors(FileWriter& out, const TensorFile& file) {
  const Header header = plan(file);
  out.write(render_header(header));
  for (const Entry& entry : header.entries) {
    const at::Tensor flat = file.tensors.at(entry.name).detach().cpu().contiguous();
    out.write({static_cast<const char*>(flat.const_data_ptr()), static_cast<std::size_t>(entry.end - entry.begin)});
  }
}

}  // namespace internal

void save_safetensors(const std::string& path, const TensorFile& file) {
  const std::string aside = path + ".tmp." + std::to_string(::getpid());
  ::unlink(aside.c_str());  // of a process that had our number and died
  try {
    internal::FileWriter out(aside);
    internal::write_tensors(out, file);
    out.finish();
    if (::rename(aside.c_str(), path.c_str()) != 0) fail_io("cannot replace", path);
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
  internal::flush_directory(internal::parent_of(path));
}

struct TensorReader::State {
  explicit State(const std::string& path) : in(path) {
    const std::int64_t header_bytes = read_header_bytes(in);
    std::string text(static_cast<std::size_t>(header_bytes), '\0');
    in.read(text.data(), header_bytes, kLengthBytes);
    data_begin = kLengthBytes + header_bytes;
    Header header = internal::parse_header(text, in.bytes() - data_begin, path);
    metadata = std::move(header.metadata);
    for (Entry& entry : header.entries) {
      sizes.emplace(entry.name, entry.shape);
      std::string name = entry.name;
      entries.emplace(std::move(name), std::move(entry));
    }
  }

  InputFile in;
  std::int64_t data_begin = 0;
  StringMap metadata;
  std::map<std::string, Entry> entries;
  std::map<std::string, std::vector<std::int64_t>> sizes;
};

TensorReader::TensorReader(const std::string& path) : state_(std::make_unique<const State>(path)) {}
TensorReader::TensorReader(TensorReader&&) noexcept = default;
TensorReader::~TensorReader() = default;

const StringMap& TensorReader::metadata() const { return state_->metadata; }
const std::map<std::string, std::vector<std::int64_t>>& TensorReader::sizes() const { return state_->sizes; }

at::Tensor TensorReader::read(const std::string& name) const {
  const auto found = state_->sizes.find(name);
  const bool scalar = found != state_->sizes.end() && found->second.empty();
  return read(name, 0, 0, found == state_->sizes.end() || scalar ? 1 : found->second[0]);
}

at::Tensor TensorReader::read(const std::string& name, std::int64_t dim, std::int64_t begin, std::int64_t count) const {
  const InputFile& in = state_->in;
  const auto found = state_->entries.find(name);
  WEFT_REQUIRE(found != state_->entries.end(), "TensorReader: the file has no tensor \"" + name + "\"");
  const Entry& entry = found->second;
  std::vector<std::int64_t> shape = entry.shape;
  const bool scalar = shape.empty();
  if (scalar) shape = {1};  // whole is its only part
  const bool there = dim >= 0 && dim < static_cast<std::int64_t>(shape.size()) && begin >= 0 && count >= 0 &&
                     count <= shape[static_cast<std::size_t>(dim)] && begin <= shape[static_cast<std::size_t>(dim)] - count;
  WEFT_REQUIRE(there, "TensorReader: \"" + name + "\" has no entries [" + std::to_string(begin) + ", " + std::to_string(begin) + " + " +
                          std::to_string(count) + ") along dimension " + std::to_string(dim));
  std::int64_t rows = 1, entry_bytes = static_cast<std::int64_t>(size_of(entry.dtype));
  for (std::int64_t d = 0; d < dim; ++d) rows *= shape[static_cast<std::size_t>(d)];
  for (std::size_t d = static_cast<std::size_t>(dim) + 1; d < shape.size(); ++d) entry_bytes *= shape[d];
  const std::int64_t row_bytes = shape[static_cast<std::size_t>(dim)] * entry_bytes, part_bytes = count * entry_bytes;

  shape[static_cast<std::size_t>(dim)] = count;
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(torch_type_of(entry.dtype)));
  auto* const data = static_cast<unsigned char*>(tensor.data_ptr());
  const std::int64_t first = state_->data_begin + entry.begin + begin * entry_bytes;
  if (part_bytes == row_bytes) {
    in.read(data, rows * part_bytes, first);
  } else {
    for (std::int64_t row = 0; row < rows; ++row) in.read(data + row * part_bytes, part_bytes, first + row * row_bytes);
  }
  const bool odd =
      entry.dtype == DType::kBool && std::any_of(data, data + rows * part_bytes, [](unsigned char value) { return value > 1; });
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
