#include "weft/checkpoint/internal/save_job.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <set>
#include <sstream>

#include "weft/base/error.h"
#include "weft/checkpoint/internal/dtypes.h"
#include "weft/checkpoint/internal/file_writer.h"
#include "weft/checkpoint/internal/folder.h"
#include "weft/checkpoint/internal/index.h"

namespace weft::checkpoint::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kRound{1};  // how often ranks tell each other that they are still writing
constexpr std::size_t kWriteBytes = std::size_t{8} << 20;

std::int64_t volume(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

// Names in words of the reports: escaped, since a word has no blank.
std::string to_word(const std::string& text) {
  std::string word = "=";
  for (const char c : text) {
    if (c == ' ' || c == '\n' || c == '%') {
      constexpr const char* kHex = "0123456789abcdef";
      word += '%';
      word += kHex[static_cast<unsigned char>(c) >> 4];
      word += kHex[static_cast<unsigned char>(c) & 15];
    } else {
      word += c;
    }
  }
  return word;
}

std::string from_word(const std::string& word) {
  std::string text;
  for (std::size_t i = 1; i < word.size(); ++i) {
    text += word[i] == '%' ? static_cast<char>(std::stoi(word.substr(i + 1, 2), nullptr, 16)) : word[i];
    if (word[i] == '%') i += 2;
  }
  return text;
}

void write_list(std::ostream& out, const std::vector<std::int64_t>& numbers) {
  out << ' ' << numbers.size();
  for (const std::int64_t number : numbers) out << ' ' << number;
}

std::vector<std::int64_t> read_list(std::istream& in) {
  std::size_t count = 0;
  in >> count;
  std::vector<std::int64_t> numbers(count);
  for (std::int64_t& number : numbers) in >> number;
  return numbers;
}

// How a rank stands, as ranks tell each other: "working", "done", or "failed CODE MESSAGE".
struct Status {
  std::string text = "working";

  void fail(Errc code, const std::string& message) { text = "failed " + std::to_string(static_cast<int>(code)) + " " + message; }
  // The exception that is being handled.
  void fail_by_exception() {
    try {
      throw;
    } catch (const Error& error) {
      fail(error.code(), error.message());
    } catch (const std::exception& error) {
      const std::string what = error.what();
      fail(Errc::kInternal, what.substr(0, what.find('\n')));
    }
  }
};

// The rounds in which all ranks tell how they stand. A round in which one has failed is the last
// one: it throws on all of them.
class Rounds {
 public:
  Rounds(const Ranks& ranks, std::int64_t step) : ranks_(ranks), step_(step) {}

  // True when no rank is working any more.
  bool tell(const Status& mine) {
    last_ = Clock::now();
    const std::vector<std::string> all = ranks_.size == 1 ? std::vector{mine.text} : ranks_.exchange(mine.text);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].starts_with("failed ")) continue;
      std::istringstream words(all[rank].substr(7));
      int code = 0;
      words >> code;
      std::string why;
      std::getline(words.ignore(1), why);
      const std::string who = ranks_.size == 1 ? "" : "rank " + std::to_string(rank) + ": ";
      throw Error(static_cast<Errc>(code), "the checkpoint of step " + std::to_string(step_) + " is not saved: " + who + why,
                  {.operation = "checkpoint"});
    }
    return std::find(all.begin(), all.end(), "working") == all.end();
  }
  // While this rank writes. Throws where another has failed.
  void tell_working() {
    if (ranks_.size > 1 && Clock::now() - last_ >= kRound) tell({});
  }
  // Ends a step of which `body` is this rank's part; all ranks pass when all have done theirs.
  template <class Body>
  void together(const Body& body) {
    Status mine;
    bool ended = false;  // by a round that told of another's failure
    try {
      body([&] {
        ended = true;
        tell_working();
        ended = false;
      });
      mine.text = "done";
    } catch (...) {
      if (ended) throw;
      mine.fail_by_exception();
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
      const at::Tensor flat = slice.tensor.detach().cpu().contiguous();
      write({static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()});
    }
  }
  beat();
  return out.finish();
}

// What rank 0 must know of a file, in two kinds of lines.
std::string report_of(const PlannedFile& file, const FileSums& sums) {
  std::ostringstream out;
  out << "file " << file.part << ' ' << file.name << ' ' << sums.bytes << ' ' << sums.chunks.size();
  for (const std::uint32_t sum : sums.chunks) out << ' ' << sum;
  out << '\n';
  for (std::size_t i = 0; i < file.slices.size(); ++i) {
    const Slice& slice = file.slices[i];
    out << "slice " << static_cast<int>(slice.tensor.scalar_type()) << ' ' << slice.tensor.nbytes() << ' ' << to_word(slice.name) << ' '
        << to_word(file.keys[i]);
    write_list(out, slice.shape);
    write_list(out, slice.tensor.sizes().vec());
    out << '\n';
  }
  return out.str();
}

// Rank 0's view of the whole checkpoint.
class Whole {
 public:
  explicit Whole(const SaveJob& job) {
    for (const std::string& part : job.parts) indices_[part];
  }
  void add(const std::string& report) {
    std::istringstream lines(report);
    std::string file, part;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string kind;
      words >> kind;
      if (kind == "file") {
        FileSums sums;
        std::size_t chunks = 0;
        words >> part >> file >> sums.bytes >> chunks;
        sums.chunks.resize(chunks);
        for (std::uint32_t& sum : sums.chunks) words >> sum;
        manifest.files[file] = std::move(sums);
      } else {
        add_slice(words, part, file);
      }
      WEFT_CHECK(!words.fail(), "a rank's report of its checkpoint files cannot be read");
    }
  }

  // Writes the index of each part that needs one.
  void write_indices(const std::string& folder) {
    for (auto& [part, index] : indices_) {
      for (const auto& [name, tensor] : tensors_[part]) {
        WEFT_REQUIRE(tensor.entries == volume(index.shapes[name]),
                     "the ranks' slices of \"" + name + "\" do not make up the whole: they have " + std::to_string(tensor.entries) +
                         " of " + std::to_string(volume(index.shapes[name])) + " entries");
      }
      // A reader takes a file that is called as its part for the whole of it.
      if (manifest.files.contains(part + std::string(kTensorSuffix)) && !cut_[part]) continue;
      const std::string name = part + std::string(kIndexSuffix);
      FileWriter out(folder + "/" + name);
      out.write(render_index(index));
      manifest.files[name] = out.finish();
    }
  }

  Manifest manifest;

 private:
  struct Tensor {
    int type = 0;
    std::int64_t entries = 0;
  };

  void add_slice(std::istream& words, const std::string& part, const std::string& file) {
    int type = 0;
    std::int64_t bytes = 0;
    std::string name_word, key_word;
    words >> type >> bytes >> name_word >> key_word;
    const std::string name = from_word(name_word), key = from_word(key_word);
    const std::vector<std::int64_t> shape = read_list(words), sizes = read_list(words);
    Index& index = indices_[part];
    const auto [known, is_new] = index.shapes.try_emplace(name, shape);
    Tensor& tensor = tensors_[part].try_emplace(name, Tensor{type, 0}).first->second;
    WEFT_REQUIRE(known->second == shape && tensor.type == type, "two ranks give \"" + name + "\" different shapes or dtypes");
    WEFT_REQUIRE(index.files.emplace(key, file).second, "two ranks give \"" + key + "\"");
    tensor.entries += volume(sizes);
    index.total_bytes += bytes;
    cut_[part] = cut_[part] || name != key;
  }

  std::map<std::string, Index> indices_;                          // by part
  std::map<std::string, std::map<std::string, Tensor>> tensors_;  // by part and name
  std::map<std::string, bool> cut_;                               // it has slices that are not whole
};

FileSums write_text(const std::string& path, const std::string& text) {
  FileWriter out(path);
  out.write(text);
  return out.finish();
}

std::string file_name(const std::string& part, int rank, int ranks) {
  if (ranks == 1) return part + std::string(kTensorSuffix);
  char place[48];
  std::snprintf(place, sizeof place, "-%05d-of-%05d", rank + 1, ranks);
  return part + place + std::string(kTensorSuffix);
}

// Widest dtype first, so that each tensor starts at a multiple of its element; then by name.
PlannedFile plan_file(const std::string& part, const std::string& name, Slices slices) {
  PlannedFile file{.part = part, .name = name, .header = {}, .slices = {}, .keys = {}};
  std::vector<std::pair<Entry, std::size_t>> entries;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = slices[i];
    WEFT_REQUIRE(!slice.name.empty() && slice.name != "__metadata__" && slice.name.back() != ']',
                 "checkpoint: no tensor can be called \"" + slice.name + "\"");
    const DType dtype = dtype_of(slice.name, slice.tensor);
    const std::vector<std::int64_t> sizes = slice.tensor.sizes().vec();
    bool fits = slice.offset.size() == slice.shape.size() && sizes.size() == slice.shape.size();
    for (std::size_t d = 0; fits && d < sizes.size(); ++d) fits = slice.offset[d] >= 0 && slice.offset[d] + sizes[d] <= slice.shape[d];
    WEFT_REQUIRE(fits, "checkpoint: a slice of \"" + slice.name + "\" reaches beyond its tensor");
    const std::string key = slice.is_whole() ? slice.name : render_slice_name({slice.name, slice.offset, sizes});
    entries.emplace_back(Entry{key, dtype, sizes}, i);
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    const std::size_t one = size_of(a.first.dtype), other = size_of(b.first.dtype);
    return one != other ? one > other : a.first.name < b.first.name;
  });
  Header header;
  std::set<std::string> seen;
  for (auto& [entry, from] : entries) {
    WEFT_REQUIRE(seen.insert(entry.name).second, "checkpoint: \"" + entry.name + "\" is given twice");
    entry.begin = file.tensor_bytes;
    entry.end = file.tensor_bytes += bytes_of(entry.dtype, entry.shape);
    file.keys.push_back(entry.name);
    file.slices.push_back(std::move(slices[from]));
    header.entries.push_back(entry);
  }
  file.header = render_header(header);
  file.bytes = static_cast<std::int64_t>(file.header.size()) + file.tensor_bytes;
  return file;
}

}  // namespace

Ranks ranks_of(const Group& group) {
  Ranks ranks{.rank = group.rank(), .size = group.size(), .exchange = {}, .collect = {}};
  // Sizes first, then all texts, as long as the longest.
  const auto padded = [group](const std::string& mine, std::vector<std::int64_t>& sizes) {
    const at::Tensor size = at::tensor({static_cast<std::int64_t>(mine.size())}, at::kLong);
    at::Tensor all = at::empty({group.size()}, at::kLong);
    group.all_gather(all, size);
    sizes.assign(all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + group.size());
    at::Tensor text = at::zeros({std::max<std::int64_t>(1, *std::max_element(sizes.begin(), sizes.end()))}, at::kByte);
    if (!mine.empty()) std::memcpy(text.data_ptr(), mine.data(), mine.size());
    return text;
  };
  const auto text_of = [](const at::Tensor& bytes, std::int64_t size) {
    return std::string(static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(size));
  };
  ranks.exchange = [=](const std::string& mine) {
    std::vector<std::int64_t> sizes;
    const at::Tensor text = padded(mine, sizes);
    at::Tensor all = at::empty({group.size(), text.numel()}, at::kByte);
    group.all_gather(all, text.unsqueeze(0));
    std::vector<std::string> texts;
    for (int rank = 0; rank < group.size(); ++rank) texts.push_back(text_of(all[rank], sizes[static_cast<std::size_t>(rank)]));
    return texts;
  };
  ranks.collect = [=](const std::string& mine) {
    std::vector<std::int64_t> sizes;
    const at::Tensor text = padded(mine, sizes);
    std::vector<std::string> texts;
    for (const at::Tensor& bytes : group.gather(text)) texts.push_back(text_of(bytes, sizes[texts.size()]));
    return texts;
  };
  return ranks;
}

SaveJob plan_save(const std::string& dir, const Shards& shards, SaveOptions options, int rank, int ranks) {
  SaveJob job{.dir = dir, .step = shards.step, .state = shards.state, .options = options};
  try {
    WEFT_REQUIRE(shards.step >= 0 && options.keep >= 0, "checkpoint: step and keep are not negative");
    for (const auto& [part, slices] : shards.parts) {
      WEFT_REQUIRE(is_plain_name(part) && part.find('.') == std::string::npos,
                   "checkpoint: a part's name has letters, digits, '_' and '-' only, got \"" + part + "\"");
      job.parts.push_back(part);
      if (!slices.empty() || ranks == 1) job.files.push_back(plan_file(part, file_name(part, rank, ranks), slices));
    }
    WEFT_REQUIRE(render_state(job.state).size() <= kMostStateBytes, "checkpoint: the state is larger than 1 MiB; put tensors into a part");
  } catch (const Error& error) {
    job.refused = error;
  }
  return job;
}

std::string run_save(const SaveJob& job, const Ranks& ranks) {
  const std::string target = job.dir + "/" + folder_name(job.step), aside = aside_name(job.dir, job.step);
  const bool first = ranks.rank == 0;
  Rounds rounds(ranks, job.step);
  try {
    rounds.together([&](const auto&) {
      if (job.refused) throw *job.refused;
      if (!first) return;
      make_directories(job.dir);
      remove_aside(job.dir);
      make_directory(aside);
    });
    std::string report;
    rounds.together([&](const auto& beat) {
      const auto write = [&](bool copied) {
        for (const PlannedFile& file : job.files) {
          if (!file.image.empty() == copied) report += report_of(file, write_file(aside + "/" + file.name, file, beat));
        }
      };
      write(false);
      if (job.released) job.released();
      write(true);
    });
    const std::vector<std::string> reports = ranks.size == 1 ? std::vector{report} : ranks.collect(report);
    rounds.together([&](const auto&) {
      if (!first) return;
      Whole whole(job);
      for (const std::string& one : reports) whole.add(one);
      whole.write_indices(aside);
      whole.manifest.files[kStateName] = write_text(aside + "/" + kStateName, render_state(job.state));
      write_text(aside + "/" + kManifestName, render_manifest(whole.manifest));
      flush_directory(aside);
      put_in_place(aside, target);
      flush_directory(job.dir);
    });
  } catch (...) {
    if (first) remove_aside(job.dir);
    throw;
  }
  if (first) {
    remove_aside(job.dir);  // what the new one replaced
    if (job.options.keep > 0) remove_old(job.dir, job.step, job.options.keep);
  }
  return target;
}

}  // namespace weft::checkpoint::internal
