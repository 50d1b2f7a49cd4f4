#include "weft/train/internal/text_files.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <set>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/data/text/tokenize_file.h"

namespace weft::train::internal {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what) {
  throw Error(Errc::kBadConfig, "data.file: " + what);
}

// The files of a folder and of the folders in it. Each file is taken once, by its own name if it
// has one here, else by that of the first link. So links in a circle end.
class TextFolder {
 public:
  explicit TextFolder(const fs::path& folder) {
    take_folder(folder);
    while (!links_.empty()) {
      const fs::path link = std::move(links_.front());
      links_.pop_front();
      follow(link);
    }
    std::sort(files_.begin(), files_.end());
  }
  const std::vector<std::string>& files() const { return files_; }

 private:
  // Takes files and folders at once, and keeps the links for later.
  void take_folder(const fs::path& folder) {
    if (!known_.insert(real_path(folder)).second) return;
    std::error_code error;
    std::vector<fs::path> entries;
    fs::directory_iterator at(folder, error);
    for (; !error && at != fs::directory_iterator(); at.increment(error)) entries.push_back(*at);
    if (error) fail("cannot read the folder " + folder.string() + ": " + error.message());
    std::sort(entries.begin(), entries.end());
    for (const fs::path& entry : entries) {
      if (entry.filename().string().starts_with('.')) continue;
      const bool is_link = fs::is_symlink(fs::symlink_status(entry, error));
      if (is_link)
        links_.push_back(entry);
      else
        take(entry);
    }
  }

  // A run of weft that lies among the texts, such as runs/ in the current folder. Its log and its
  // metrics are no text to train on.
  static bool is_run(const fs::path& folder) {
    std::error_code ignored;
    return fs::is_regular_file(folder / "config.toml", ignored) &&
           fs::is_directory(folder / "ckpt", ignored);
  }

  void take(const fs::path& entry) {
    std::error_code ignored;
    const fs::file_status status = fs::status(entry, ignored);
    if (is_run(entry))
      return log_warn("data.file: " + entry.string() + " is left out: it is a run of weft");
    if (fs::is_directory(status)) return take_folder(entry);
    if (!fs::is_regular_file(status))
      return log_warn("data.file: " + entry.string() + " is left out: it is no file and no folder");
    if (known_.insert(real_path(entry)).second) files_.push_back(entry.string());
  }

  void follow(const fs::path& link) {
    std::error_code error;
    if (!fs::exists(link, error)) {
      fail("the link " + link.string() + " leads nowhere" + (error ? ": " + error.message() : "") +
           "; mend or remove it");
    }
    take(link);
  }

  static fs::path real_path(const fs::path& path) {
    std::error_code error;
    fs::path real = fs::canonical(path, error);
    if (error) fail("cannot read " + path.string() + ": " + error.message());
    return real;
  }

  std::set<fs::path> known_;  // Real paths of the files and folders that have been taken.
  std::deque<fs::path> links_;
  std::vector<std::string> files_;
};

void check_texts(const std::vector<std::string>& files) {
  std::string first;
  std::size_t doubtful = 0;
  for (const std::string& file : files) {
    const std::string doubt = data::text::check_text_file(file);
    doubtful += doubt.empty() ? 0 : 1;
    if (first.empty()) first = doubt;
  }
  if (first.empty()) return;
  const std::string more = doubtful > 2    ? " and " + std::to_string(doubtful - 1) + " others"
                           : doubtful == 2 ? " and another file"
                                           : "";
  log_warn("data.file: training takes the bytes of this file" + more + " as they are: " + first);
}

}  // namespace

std::vector<std::string> text_files(const std::string& path) {
  if (path.empty())
    throw Error(Errc::kBadConfig, "data.file is not set: name a text file, or a folder of them");
  std::error_code ignored;
  std::vector<std::string> files;
  if (fs::is_directory(path, ignored)) {
    files = TextFolder(path).files();
    if (files.empty()) fail("the folder " + path + " has no files");
  } else if (fs::is_regular_file(path, ignored)) {
    files = {path};
  } else {
    fail("there is no file " + path);
  }
  try {
    check_texts(files);
  } catch (const Error& error) {
    throw Error(error.code(), "data.file: " + error.message());
  }
  return files;
}

}  // namespace weft::train::internal
