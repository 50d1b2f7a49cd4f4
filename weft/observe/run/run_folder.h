// The folder of a run: runs/<name>/{config.toml, log.jsonl, metrics.jsonl, events.out.tfevents.*,
// ckpt/, .lock}. Only rank 0 creates one; other ranks write only checkpoints into it. One process
// at a time uses a run folder: it holds a lock on .lock.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "weft/base/config.h"
#include "weft/base/file.h"

namespace weft::observe {

struct RunFolderOptions {
  std::string parent = "runs";
  // Empty: default_run_name(recipe, now, nth) with the lowest nth whose folder does not exist.
  std::string name;
  std::string recipe;   // recipe in the default name
  bool resume = false;  // use an existing run folder
};

// The recipe in the name of a run: ASCII characters other than letters, digits, dots, - and _
// become -; others stay. "run" for an empty one.
std::string recipe_in_name(const std::string& recipe);

// Throws Error(kInvalidArgument) for a name that is not that of a single folder, or is longer than
// the 255 bytes that file systems allow. An empty name is right: it means a default one.
void check_run_name(const std::string& name);

// A name of the local time and the recipe, which sorts by time: "2026-01-31-235959-fashion-mnist".
// With `nth` = 2: "2026-01-31-235959-2-fashion-mnist".
std::string default_run_name(const std::string& recipe, std::chrono::system_clock::time_point now,
                             int nth = 1);

// True if a process holds the lock of the run folder.
bool is_in_use(const std::string& path);

// The process that trains a run: rank 0's. No host: none does.
struct RunOwner {
  int pid = 0;
  std::string host = {};
};
RunOwner owner_of_run(const std::string& path);

class RunFolder {
 public:
  // Creates the folder and ckpt/, locks it, writes config.toml and attaches log.jsonl to the log. A
  // resumed run has its config.toml until commit().
  // Throws Error:
  // - kInvalidArgument if the name is not that of a single folder, if a new run's folder is not
  //   empty, or if there is no run to resume;
  // - kUnavailable if another process uses the folder;
  // - an error of the file system, with its path.
  RunFolder(const RunFolderOptions& options, const Config& config);
  // Detaches the log. Without commit(), also removes a folder that the constructor created, so
  // that a failed start leaves nothing behind.
  ~RunFolder();
  // The start has succeeded: the folder stays, and config.toml of a resumed run is replaced. Throws
  // an error of the file system, with its path.
  void commit();
  // True if the folder has been deleted or moved.
  bool is_gone() const;
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string config_path() const { return path_ + "/config.toml"; }
  std::string log_path() const { return path_ + "/log.jsonl"; }
  std::string checkpoint_path() const { return path_ + "/ckpt"; }

 private:
  void lock(bool resume);

  std::string path_;
  UniqueFd lock_;
  bool made_ = false, committed_ = false;
  std::optional<std::string> resumed_config_;  // until commit()
};

}  // namespace weft::observe
