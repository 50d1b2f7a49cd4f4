// The folder of a run: runs/<name>/{config.toml, log.jsonl, metrics.jsonl, events.out.tfevents.*,
// ckpt/, .lock}. Rank 0 alone makes one; the other ranks write nothing there except through their
// checkpoints. One process at a time uses a run folder: it holds a lock on .lock.
#pragma once

#include <chrono>
#include <string>

#include "weft/base/config.h"
#include "weft/base/file.h"

namespace weft::observe {

struct RunFolderOptions {
  std::string parent = "runs";
  // empty: the first default_run_name(recipe, now, 1, 2, …) that is not there yet
  std::string name;
  std::string recipe;   // for the default name
  bool resume = false;  // go on in a folder that holds a run
};

// "2026-01-31-235959-fashion-mnist": the local time, sortable, and the recipe, or "run" without
// one. Any other character of the recipe than letters, digits, dots, - and _ becomes -. `nth` above
// 1: "2026-01-31-235959-2-fashion-mnist".
std::string default_run_name(const std::string& recipe, std::chrono::system_clock::time_point now,
                             int nth = 1);

class RunFolder {
 public:
  // Makes the folder and ckpt/, locks it, writes config.toml and attaches log.jsonl to the log.
  // Throws kInvalidArgument for a name that would leave `parent`, for a folder that is not empty
  // unless resuming, and for one that is not there when resuming; kUnavailable for one that another
  // process uses; and what the file system says, with its path.
  RunFolder(const RunFolderOptions& options, const Config& config);
  // Detaches the log. Without keep() a folder that the constructor made is removed: a start that
  // failed leaves nothing behind.
  ~RunFolder();
  void keep() { kept_ = true; }
  // True when the folder was deleted or moved since.
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
  bool made_ = false, kept_ = false;
};

}  // namespace weft::observe
