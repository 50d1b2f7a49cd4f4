#include "weft/checkpoint/reader.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/internal/box.h"
#include "weft/checkpoint/internal/dtypes.h"
#include "weft/checkpoint/internal/folder.h"
#include "weft/checkpoint/internal/index.h"
#include "weft/checkpoint/internal/packed_block.h"

namespace weft::checkpoint {
namespace {

using internal::Box;
using internal::Entry;
using internal::Sizes;
using internal::TensorFileMap;
using internal::view_of;
using internal::volume;

// A stored rectangle of a tensor.
struct Piece {
  std::string file, key;  // the file, and the name in this file
  Sizes offset, sizes;
  std::optional<internal::PackedSlice> packed = {};  // if it is in no file
};

// Reads a part of a stored tensor into the memory at `out`, which has the sizes of `box`.
void read_box(const TensorFileMap& file, const Entry& entry, const Box& box, std::byte* out) {
  const auto check_booleans = [&](const std::byte* data, std::int64_t bytes) {
    if (entry.dtype != DType::kBool) return;
    if (std::any_of(data, data + bytes, [](std::byte value) { return value > std::byte{1}; }))
      file.in->fail("tensor \"" + entry.name + "\" has a boolean that is neither 0 nor 1");
  };
  internal::each_run(entry.shape, box, static_cast<std::int64_t>(size_of(entry.dtype)),
                     [&](std::int64_t begin, std::int64_t bytes) {
                       file.in->read(out, bytes, file.data_begin + entry.begin + begin);
                       check_booleans(out, bytes);
                       out += bytes;
                     });
}

// The same of a packed block that is elsewhere, by a few requests.
void fetch_box(const internal::PackedSlice& slice, const Box& box, std::byte* out) {
  std::vector<Reader::Range> ranges;
  std::int64_t waiting = 0;
  const auto send = [&] {
    if (waiting > 0) slice.fetch(ranges, out);
    out += waiting;
    waiting = 0;
    ranges.clear();
  };
  internal::each_run(slice.sizes, box, static_cast<std::int64_t>(size_of(slice.dtype)),
                     [&](std::int64_t begin, std::int64_t bytes) {
                       for (std::int64_t done = 0; done < bytes;) {
                         const auto some = std::min(bytes - done, Reader::kFetchBytes - waiting);
                         ranges.push_back({slice.begin + begin + done, some});
                         waiting += some;
                         done += some;
                         if (waiting == Reader::kFetchBytes) send();
                       }
                       if (ranges.size() >= Reader::kFetchRanges) send();
                     });
  send();
}

}  // namespace

struct Reader::State {
  struct OpenFile {
    std::unique_ptr<const TensorFileMap> map;
    std::map<std::string, const Entry*> entries;
  };
  struct Part {
    Shapes shapes;
    std::map<std::string, std::vector<Piece>> stored;
  };

  std::string folder;  // if empty, `file` of a piece is a path
  std::optional<internal::Manifest> manifest;
  std::int64_t step = 0;
  StringMap strings;
  std::map<std::string, Part> parts;
  mutable std::mutex mutex;
  // By name; guarded by the mutex; entries never move.
  mutable std::map<std::string, OpenFile> open;

  const OpenFile& file(const std::string& name) const {
    const std::scoped_lock lock(mutex);
    const auto found = open.find(name);
    if (found != open.end()) return found->second;
    OpenFile file;
    const std::string path = manifest ? folder + "/" + name : name;
    auto in = manifest ? internal::open_file(folder, *manifest, name)
                       : std::make_unique<internal::InputFile>(path);
    file.map = std::make_unique<const TensorFileMap>(std::move(in), path);
    for (const Entry& entry : file.map->header.entries) file.entries.emplace(entry.name, &entry);
    return open.emplace(name, std::move(file)).first->second;
  }

  // Finds a piece's entry and checks that its shape is that of the index.
  const Entry& entry(const Piece& piece) const {
    const OpenFile& in = file(piece.file);
    const auto found = in.entries.find(piece.key);
    if (found == in.entries.end() || found->second->shape != piece.sizes) {
      in.map->in->fail("has no tensor \"" + piece.key + "\" of the index's shape");
    }
    return *found->second;
  }

  const Part& part(const std::string& name) const {
    const auto found = parts.find(name);
    WEFT_REQUIRE(found != parts.end(),
                 "checkpoint " + folder + ": there is no part \"" + name + "\"");
    return found->second;
  }

  const std::vector<Piece>& pieces(const std::string& part_name, const std::string& name) const {
    const Part& in = part(part_name);
    const auto found = in.stored.find(name);
    WEFT_REQUIRE(found != in.stored.end(), "checkpoint " + folder + ": the part \"" + part_name +
                                               "\" has no tensor \"" + name + "\"");
    return found->second;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Errc::kCorrupt, folder + ": " + what);
  }

  void add_file(Part& to, const std::string& name) {
    for (const auto& [key, entry] : file(name).entries) {
      WEFT_REQUIRE(!to.shapes.contains(key),
                   "checkpoint: \"" + key + "\" is in two files, of them " + name);
      to.shapes.emplace(key, entry->shape);
      to.stored[key].push_back({name, key, Sizes(entry->shape.size(), 0), entry->shape});
    }
  }

  void add_index(Part& to, const std::string& name) {
    const internal::Index index =
        internal::parse_index(internal::read_text(folder, *manifest, name), folder + "/" + name);
    for (const auto& [key, in] : index.files) {
      internal::SliceName slice = internal::parse_slice_name(key, name);
      if (slice.offset.empty()) {
        slice.sizes = index.shapes.at(key);
        slice.offset.assign(slice.sizes.size(), 0);
      }
      to.stored[slice.tensor].push_back({in, key, std::move(slice.offset), std::move(slice.sizes)});
    }
    for (const auto& [tensor, shape] : index.shapes) add_shape(to, tensor, shape);
  }

  // The tensor's pieces must be there.
  void add_shape(Part& to, const std::string& tensor, const Sizes& shape) {
    const auto found = to.stored.find(tensor);
    if (internal::bytes_of(DType::kU8, shape) < 0)
      fail("\"" + tensor + "\" has a shape beyond 2^63 entries");
    std::int64_t left = volume(shape);
    for (const Piece& piece : found == to.stored.end() ? std::vector<Piece>() : found->second) {
      if (volume(piece.sizes) > left) fail("the slices of \"" + tensor + "\" overlap");
      left -= volume(piece.sizes);
    }
    if (left != 0) fail("the slices of \"" + tensor + "\" do not make up the whole");
    to.shapes.emplace(tensor, shape);
  }

  // Returns the first part that has a tensor of this name; null if there is none.
  const Part* part_of(const std::string& name) const {
    for (const auto& [part_name, part] : parts) {
      if (part.shapes.contains(name)) return &part;
    }
    return nullptr;
  }

  void check(const Slice& slice, const Part* part) const {
    const std::string here = "the checkpoint's \"" + slice.name + "\"";
    WEFT_REQUIRE(part != nullptr && part->shapes.contains(slice.name),
                 "the checkpoint has no tensor \"" + slice.name +
                     "\"; is it of another model or optimizer?");
    WEFT_REQUIRE(part->shapes.at(slice.name) == slice.shape,
                 here + " has another shape than the model's");
    const auto stored = part->stored.find(slice.name);
    if (stored == part->stored.end() || !slice.tensor.defined()) return;
    const Box box{slice.offset, slice.tensor.sizes().vec()};
    for (const Piece& piece : stored->second) {
      if (!internal::intersection(box, {piece.offset, piece.sizes})) continue;
      const at::ScalarType type = type_of(piece), wanted = slice.tensor.scalar_type();
      WEFT_REQUIRE(converts(type, wanted), here + " is " + at::toString(type) +
                                               " and the model's is " + at::toString(wanted) +
                                               ", which is not converted");
    }
  }

  template <class PartOf>
  void fill_all(const Slices& slices, const PartOf& part_of) const {
    const at::NoGradGuard no_grad;
    std::vector<const Slice*> ordered;  // in file order, so that each chunk is read once
    for (const Slice& slice : slices) ordered.push_back(&slice);
    std::sort(ordered.begin(), ordered.end(), [](const Slice* a, const Slice* b) {
      return std::tie(a->name, a->offset) < std::tie(b->name, b->offset);
    });
    for (const Slice* slice : ordered) fill(*part_of(*slice), *slice);
  }

  // One piece holds every entry of the slice.
  void fill(const Part& part, const Slice& slice) const {
    const Box wanted{slice.offset, slice.tensor.sizes().vec()};
    if (slice.tensor.numel() == 0) return;
    std::vector<Box> filled;
    std::int64_t left = slice.tensor.numel();
    for (const Piece& piece : part.stored.at(slice.name)) {
      const auto both = internal::intersection(wanted, {piece.offset, piece.sizes});
      if (!both) continue;
      for (const Box& other : filled) {
        if (internal::intersection(*both, other)) fail("slices of \"" + slice.name + "\" overlap");
      }
      filled.push_back(*both);
      left -= volume(both->sizes);
      read(piece, internal::within(*both, piece.offset),
           view_of(slice.tensor, internal::within(*both, slice.offset)));
    }
    if (left != 0) fail("the slices of \"" + slice.name + "\" leave a hole");
  }

  void read(const Piece& piece, const Box& box, const at::Tensor& into) const {
    if (piece.packed && piece.packed->values.defined()) {
      at::Tensor(into).copy_(view_of(piece.packed->values, box));
      return;
    }
    const auto read_to = [&](std::byte* out) {
      if (piece.packed) return fetch_box(*piece.packed, box, out);
      read_box(*file(piece.file).map, entry(piece), box, out);
    };
    const at::ScalarType type = type_of(piece);
    if (into.is_contiguous() && into.scalar_type() == type && into.is_cpu())
      return read_to(static_cast<std::byte*>(into.data_ptr()));
    const at::Tensor read = at::empty(box.sizes, at::TensorOptions().dtype(type));
    read_to(static_cast<std::byte*>(read.data_ptr()));
    at::Tensor(into).copy_(read);
  }

  at::ScalarType type_of(const Piece& piece) const {
    return internal::torch_type_of(piece.packed ? piece.packed->dtype : entry(piece).dtype);
  }
};

Reader::Reader(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

Reader::Reader(const std::string& folder) {
  auto state = std::make_unique<State>();
  state->folder = folder;
  state->step = internal::step_of_folder(folder);
  state->manifest = internal::read_manifest(folder);
  // Without chunks, a checksum covers a whole file.
  if (state->manifest->chunk_bytes == 0) internal::verify_share(folder, *state->manifest, 0, 1);
  state->strings =
      internal::parse_state(internal::read_text(folder, *state->manifest, internal::kStateName),
                            folder + "/" + internal::kStateName);
  for (const auto& [name, sums] : state->manifest->files) {
    if (name.ends_with(internal::kIndexSuffix)) {
      state->add_index(state->parts[name.substr(0, name.size() - internal::kIndexSuffix.size())],
                       name);
    }
  }
  std::set<std::string> indexed;
  for (const auto& [name, part] : state->parts) {
    for (const auto& [tensor, pieces] : part.stored) {
      for (const Piece& piece : pieces) indexed.insert(piece.file);
    }
  }
  for (const auto& [name, sums] : state->manifest->files) {
    if (name.ends_with(internal::kTensorSuffix) && !indexed.contains(name)) {
      state->add_file(state->parts[name.substr(0, name.size() - internal::kTensorSuffix.size())],
                      name);
    }
  }
  state_ = std::move(state);
}

Reader Reader::of_files(const std::vector<std::string>& paths) {
  auto state = std::make_unique<State>();
  for (const std::string& path : paths) state->add_file(state->parts["model"], path);
  return Reader(std::move(state));
}

Reader Reader::of_packed(const std::vector<Packed>& blocks) {
  auto state = std::make_unique<State>();
  state->folder = "the copy of the state in memory";
  std::map<std::string, Shapes> shapes;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    internal::PackedBlock block(blocks[i], state->folder);
    if (i == 0) {
      state->step = block.step();
      state->strings = block.state();
    } else if (block.step() != state->step) {
      state->fail("the blocks are of steps " + std::to_string(state->step) + " and " +
                  std::to_string(block.step()));
    }
    for (internal::PackedSlice& slice : block.take_slices()) {
      shapes[slice.part].emplace(slice.name, slice.shape);
      auto& stored = state->parts[slice.part].stored[slice.name];
      Sizes offset = slice.offset, sizes = slice.sizes;
      stored.push_back({"", "", std::move(offset), std::move(sizes), std::move(slice)});
    }
  }
  for (const auto& [part, all] : shapes) {
    for (const auto& [name, shape] : all) state->add_shape(state->parts[part], name, shape);
  }
  return Reader(std::move(state));
}

std::int64_t Reader::step() const { return state_->step; }
const StringMap& Reader::state() const { return state_->strings; }

std::vector<std::string> Reader::parts() const {
  std::vector<std::string> names;
  for (const auto& [name, part] : state_->parts) names.push_back(name);
  return names;
}

const Reader::Shapes& Reader::shapes(const std::string& part) const {
  return state_->part(part).shapes;
}

at::ScalarType Reader::dtype(const std::string& part, const std::string& name) const {
  return state_->type_of(state_->pieces(part, name).front());
}

bool Reader::converts(at::ScalarType stored, at::ScalarType wanted) {
  const bool exact = stored == at::kInt || stored == at::kLong;
  return stored == wanted || (at::isFloatingType(wanted) && (at::isFloatingType(stored) || exact));
}

bool Reader::has(const std::string& name) const { return state_->part_of(name) != nullptr; }

void Reader::check(const Slices& slices) const {
  for (const Slice& slice : slices) {
    state_->check(slice, state_->part_of(slice.name));
  }
}

void Reader::fill(const Slices& slices) const {
  check(slices);
  state_->fill_all(slices, [this](const Slice& slice) { return state_->part_of(slice.name); });
}

void Reader::fill(const std::string& part, const Slices& slices) const {
  const State::Part& from = state_->part(part);
  for (const Slice& slice : slices) state_->check(slice, &from);
  state_->fill_all(slices, [&](const Slice&) { return &from; });
}

at::Tensor Reader::read(const std::string& part, const std::string& name) const {
  const auto found = shapes(part).find(name);
  WEFT_REQUIRE(found != shapes(part).end(),
               "checkpoint: the part \"" + part + "\" has no tensor \"" + name + "\"");
  at::Tensor whole = at::empty(found->second, at::TensorOptions().dtype(dtype(part, name)));
  state_->fill(state_->part(part), whole_slice(name, whole));
  return whole;
}

std::vector<Reader::Place> Reader::places(const std::string& part, const std::string& name) const {
  std::vector<Place> places;
  for (const Piece& piece : state_->pieces(part, name))
    places.push_back({piece.file, piece.offset, piece.sizes});
  return places;
}

}  // namespace weft::checkpoint
