// The commit of a checkpoint. After a crash at any moment, it is complete or absent:
//
//   1  rank 0   lock ckpt; make ckpt/.tmp-step-N, after removing what crashes have left
//   2  all      write their files into it, and flush each one (FileWriter::finish())
//   3  rank 0   check by the ranks' reports that the slices make up whole tensors
//   4  rank 0   write and flush the indices and state.json, then the manifest with all checksums
//   5  rank 0   flush ckpt/.tmp-step-N: the names of the files are on the disk
//   6  rank 0   rename it to step-N, or exchange the two: now there is a checkpoint
//   7  rank 0   flush ckpt: the new name is on the disk
//   8  rank 0   remove older checkpoints, each renamed before it is removed; unlock ckpt
//
// If step 6 or 7 fails, step-N becomes what it was before, since the save counts as failed.
//
// Nothing is renamed before its content is on the disk, and nothing older is removed before the new
// checkpoint is. Readers look for names step-N alone, so they never see a half written folder.
//
// Another job must not save into ckpt meanwhile: step 1 of one would remove the folder of the
// other. The lock prevents that. Some file systems have no locks. There, rank 0 notices before
// steps 4 and 6 that ckpt/.tmp-step-N is not the folder that it has made, and the save fails.
//
// The ranks go through three phases together: 1, 2, and 3 to 7. A phase ends on all ranks when all
// have done their part, or with the error of the lowest rank that has failed. A rank that writes
// tells the others once a second that it still does, and so learns of their errors before it has
// written everything.
#include "weft/checkpoint/internal/save_job.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "weft/base/caught/caught.h"
#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/checkpoint/internal/box.h"
#include "weft/checkpoint/internal/dtypes.h"
#include "weft/checkpoint/internal/file_writer.h"
#include "weft/checkpoint/internal/folder.h"
#include "weft/checkpoint/internal/folder_lock.h"
#include "weft/checkpoint/internal/index.h"
#include "weft/comm/texts.h"

namespace weft::checkpoint::internal {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// How often ranks tell each other that they are still writing.
constexpr std::chrono::seconds kRound{1};
constexpr std::size_t kWriteBytes = std::size_t{8} << 20;

std::int64_t volume(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

// A rank's status as it is sent to the other ranks: "working", "done", or "failed CODE MESSAGE".
struct Status {
  std::string text = "working";

  // Takes the error from the exception that is being handled.
  void fail() {
    try {
      throw;
    } catch (const std::exception& error) {
      text = "failed " + error_text(as_error(error));
    }
  }
};

// The rounds in which all ranks exchange their status. If a rank has failed, the round throws on
// all ranks and is the last one.
class Rounds {
 public:
  Rounds(const Ranks& ranks, std::int64_t step) : ranks_(ranks), step_(step) {}

  // Returns true when no rank is working any more.
  bool tell(const Status& mine) {
    last_ = Clock::now();
    const std::vector<std::string> all =
        ranks_.size == 1 ? std::vector{mine.text} : ranks_.exchange(mine.text);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].starts_with("failed ")) continue;
      const auto [code, why] = read_error_text(all[rank].substr(7));
      const std::string who = ranks_.size == 1 ? "" : "rank " + std::to_string(rank) + ": ";
      throw Error(code,
                  "the checkpoint of step " + std::to_string(step_) + " is not saved: " + who + why,
                  {.operation = "checkpoint"});
    }
    return std::find(all.begin(), all.end(), "working") == all.end();
  }
  // Called while this rank writes. Throws if another rank has failed.
  void tell_working() {
    if (ranks_.size > 1 && Clock::now() - last_ >= kRound) tell({});
  }
  // Runs this rank's part of a step, `body`, and returns when all ranks have done theirs.
  template <class Body>
  void together(const Body& body) {
    Status mine;
    bool ended = false;  // by a round in which another rank had failed
    try {
      body([&] {
        ended = true;
        tell_working();
        ended = false;
      });
      mine.text = "done";
    } catch (...) {
      if (ended) throw;
      mine.fail();
    }
    while (!tell(mine)) {
    }
  }

 private:
  const Ranks& ranks_;
  const std::int64_t step_;
  Clock::time_point last_ = Clock::now();
};

template <class Beat>
FileSums write_file(const std::string& path, const PlannedFile& file, const Beat& beat) {
  FileWriter out(path);
  const auto write = [&](std::string_view bytes) {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(kWriteBytes, bytes.size()))) {
      beat();
      out.write(bytes.substr(0, kWriteBytes));
    }
  };
  if (!file.image.empty()) {
    write({reinterpret_cast<const char*>(file.image.data()), file.image.size()});
  } else {
    write(file.header);
    for (const Slice& slice : file.slices) {
      const at::Tensor flat = slice.tensor.detach().cpu().resolve_neg().contiguous();
      write({static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()});
    }
  }
  beat();
  return out.finish();
}

// Tells rank 0 about a file that this rank has written.
json report_of(const PlannedFile& file, const FileSums& sums) {
  json slices = json::array();
  for (std::size_t i = 0; i < file.slices.size(); ++i) {
    const Slice& slice = file.slices[i];
    slices.push_back({{"name", slice.name},
                      {"key", file.keys[i]},
                      {"type", static_cast<int>(slice.tensor.scalar_type())},
                      {"bytes", slice.tensor.nbytes()},
                      {"shape", slice.shape},
                      {"entries", slice.tensor.numel()}});
  }
  return {{"part", file.part},
          {"file", file.name},
          {"bytes", sums.bytes},
          {"chunks", sums.chunks},
          {"slices", slices}};
}

// Throws Error(kInvalidArgument) if two slices of a tensor have an entry in common.
void require_no_overlap(const std::string& name, std::vector<Box> slices) {
  if (slices.empty() || slices[0].offset.empty()) return;
  std::sort(slices.begin(), slices.end(),
            [](const Box& a, const Box& b) { return a.offset < b.offset; });
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const std::int64_t end = slices[i].offset[0] + slices[i].sizes[0];
    for (std::size_t j = i + 1; j < slices.size() && slices[j].offset[0] < end; ++j)
      WEFT_REQUIRE(!intersection(slices[i], slices[j]),
                   "the ranks' slices of \"" + name + "\" overlap");
  }
}

// Writes an index or a manifest, unless it is larger than readers take.
FileSums write_table(const std::string& path, const std::string& text) {
  WEFT_REQUIRE(text.size() <= kMaxTextBytes, path + " would be larger than the " +
                                                 format_bytes(kMaxTextBytes) +
                                                 " that it may have; save fewer slices");
  return write_text(path, text);
}

// What rank 0 knows about the whole checkpoint.
class Whole {
 public:
  explicit Whole(const SaveJob& job) {
    for (const std::string& part : job.parts) indices_[part];
  }
  // Adds the reports of one rank.
  void add(const json& files) {
    for (const json& file : files) {
      const auto name = file.at("file").get<std::string>();
      manifest.files[name] = {file.at("bytes").get<std::int64_t>(),
                              file.at("chunks").get<std::vector<std::uint32_t>>()};
      for (const json& slice : file.at("slices"))
        add_slice(slice, file.at("part").get<std::string>(), name);
    }
  }

  // Writes the index of each part that needs one.
  void write_indices(const std::string& folder) {
    for (auto& [part, index] : indices_) {
      for (const auto& [name, tensor] : tensors_[part]) {
        WEFT_REQUIRE(tensor.entries == volume(index.shapes[name]),
                     "the ranks' slices of \"" + name + "\" do not make up the whole: they have " +
                         std::to_string(tensor.entries) + " of " +
                         std::to_string(volume(index.shapes[name])) + " entries");
        require_no_overlap(name, tensor.slices);
      }
      // A reader takes a file with the part's plain name for the whole part.
      if (manifest.files.contains(part + std::string(kTensorSuffix)) && !cut_[part]) continue;
      const std::string name = part + std::string(kIndexSuffix);
      manifest.files[name] = write_table(folder + "/" + name, render_index(index));
    }
  }

  Manifest manifest;

 private:
  struct Tensor {
    int type = 0;
    std::int64_t entries = 0;
    std::vector<Box> slices = {};
  };

  void add_slice(const json& slice, const std::string& part, const std::string& file) {
    const auto name = slice.at("name").get<std::string>(), key = slice.at("key").get<std::string>();
    const auto shape = slice.at("shape").get<std::vector<std::int64_t>>();
    const int type = slice.at("type").get<int>();
    Index& index = indices_[part];
    const auto [known, is_new] = index.shapes.try_emplace(name, shape);
    Tensor& tensor = tensors_[part].try_emplace(name, Tensor{type, 0}).first->second;
    WEFT_REQUIRE(known->second == shape && tensor.type == type,
                 "two ranks give \"" + name + "\" different shapes or dtypes");
    WEFT_REQUIRE(index.files.emplace(key, file).second, "two ranks give \"" + key + "\"");
    tensor.entries += slice.at("entries").get<std::int64_t>();
    SliceName place = parse_slice_name(key, file);
    if (!place.offset.empty())
      tensor.slices.push_back({std::move(place.offset), std::move(place.sizes)});
    index.total_bytes += slice.at("bytes").get<std::int64_t>();
    cut_[part] = cut_[part] || name != key;
  }

  std::map<std::string, Index> indices_;                          // by part
  std::map<std::string, std::map<std::string, Tensor>> tensors_;  // by part and name
  std::map<std::string, bool> cut_;  // whether the part has slices that are not whole tensors
};

PlannedFile plan_file(const std::string& part, const std::string& name, const Slices& slices) {
  PlannedFile file{.part = part, .name = name, .header = {}, .slices = {}, .keys = {}};
  Header header;
  std::map<std::string, const Slice*> by_key;
  for (const Slice& slice : slices) {
    check_name(slice.name);
    const DType dtype = dtype_of(slice.name, slice.tensor);
    const std::vector<std::int64_t> sizes = slice.tensor.sizes().vec();
    bool fits = slice.offset.size() == slice.shape.size() && sizes.size() == slice.shape.size();
    for (std::size_t d = 0; fits && d < sizes.size(); ++d)
      fits = slice.offset[d] >= 0 && slice.offset[d] + sizes[d] <= slice.shape[d];
    WEFT_REQUIRE(fits, "checkpoint: a slice of \"" + slice.name + "\" reaches beyond its tensor");
    const std::string key =
        slice.is_whole() ? slice.name : render_slice_name({slice.name, slice.offset, sizes});
    WEFT_REQUIRE(by_key.emplace(key, &slice).second, "checkpoint: \"" + key + "\" is given twice");
    header.entries.push_back({key, dtype, sizes});
  }
  file.tensor_bytes = lay_out(header.entries);
  for (const Entry& entry : header.entries) {
    file.keys.push_back(entry.name);
    file.slices.push_back(*by_key.at(entry.name));
  }
  file.header = render_header(header);
  file.bytes = static_cast<std::int64_t>(file.header.size()) + file.tensor_bytes;
  return file;
}

// Removes what is left of this save, and the checkpoints that the new one replaces. The ranks know
// already whether the checkpoint is complete, so an error of this rank does not count.
void tidy_up(const SaveJob& job, bool is_complete) noexcept {
  try {
    remove_aside(job.dir);
    if (is_complete && job.options.keep > 0) remove_old(job.dir, job.step, job.options);
  } catch (const std::exception& error) {
    log_warn("older checkpoints are not removed: " + describe(error));
  }
}

// Steps 3 to 7. Their order makes the checkpoint safe. `made`: ckpt/.tmp-step-N.
void commit(const SaveJob& job, const std::vector<std::string>& reports, const OwnFolder& made) {
  const std::string aside = aside_name(job.dir, job.step);
  Whole whole(job);
  for (const std::string& one : reports) whole.add(json::parse(one));
  made.require_in_place();
  whole.write_indices(aside);
  whole.manifest.files[kStateName] = write_text(aside + "/" + kStateName, render_state(job.state));
  made.require_in_place();
  write_table(aside + "/" + kManifestName, render_manifest(whole.manifest));
  flush_directory(aside);
  made.require_in_place();
  put_in_place(aside, job.dir + "/" + folder_name(job.step));
}

}  // namespace

std::string error_text(const Error& error) {
  return std::to_string(static_cast<int>(error.code())) + " " + error.message();
}

std::pair<Errc, std::string> read_error_text(const std::string& text) {
  return {static_cast<Errc>(std::stoi(text)), text.substr(text.find(' ') + 1)};
}

Ranks ranks_of(const Group& group) {
  return {
      .rank = group.rank(),
      .size = group.size(),
      .exchange = [group](const std::string& mine) { return comm::all_gather_texts(group, mine); },
      .collect = [group](const std::string& mine) { return comm::gather_texts(group, mine); }};
}

SaveJob plan_save(const std::string& dir, const Shards& shards, SaveOptions options, int rank,
                  int ranks) {
  SaveJob job{.dir = dir, .step = shards.step, .state = shards.state, .options = options};
  try {
    WEFT_REQUIRE(shards.step >= 0 && options.keep >= 0,
                 "checkpoint: step and keep are not negative");
    for (const auto& [part, slices] : shards.parts) {
      WEFT_REQUIRE(is_plain_name(part) && part.find('.') == std::string::npos &&
                       part.size() <= kMaxPartBytes,
                   "checkpoint: a part's name has 1 to " + std::to_string(kMaxPartBytes) +
                       " letters, digits, '_' and '-', and nothing else, got \"" + part + "\"");
      job.parts.push_back(part);
      if (!slices.empty() || ranks == 1)
        job.files.push_back(plan_file(
            part,
            tensor_file_name(part, static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks)),
            slices));
    }
    WEFT_REQUIRE(render_state(job.state).size() <= kMaxStateBytes,
                 "checkpoint: the state is larger than 1 MiB; put tensors into a part");
  } catch (const std::exception& error) {
    job.refused = as_error(error);
  }
  return job;
}

std::string run_save(const SaveJob& job, const Ranks& ranks) {
  const std::string target = job.dir + "/" + folder_name(job.step),
                    aside = aside_name(job.dir, job.step);
  const bool first = ranks.rank == 0;
  Rounds rounds(ranks, job.step);
  std::optional<FolderLock> lock;  // of rank 0, as the next one
  std::optional<OwnFolder> made;
  try {
    rounds.together([&](const auto&) {
      if (job.refused) throw *job.refused;
      if (!first) return;
      make_directories(job.dir);
      lock.emplace(job.dir);
      remove_aside(job.dir);
      made.emplace(aside);
    });
    json files = json::array();
    std::string report;
    rounds.together([&](const auto& beat) {
      const auto write = [&](bool copied) {
        for (const PlannedFile& file : job.files) {
          if (!file.image.empty() == copied)
            files.push_back(report_of(file, write_file(aside + "/" + file.name, file, beat)));
        }
      };
      // Files without a copy first: the caller cannot train on before they are written.
      write(false);
      if (job.released) job.released();
      write(true);
      report = files.dump();
    });
    const std::vector<std::string> reports =
        ranks.size == 1 ? std::vector{report} : ranks.collect(report);
    rounds.together([&](const auto&) {
      if (first) commit(job, reports, *made);
    });
  } catch (...) {
    // Without the lock, or if its folder was replaced, the temporary folders are another job's.
    if (lock && (!made || made->is_in_place())) tidy_up(job, false);
    throw;
  }
  if (first) tidy_up(job, true);
  return target;
}

}  // namespace weft::checkpoint::internal
