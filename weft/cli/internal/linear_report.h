// What `weft linear` prints: progress and a summary on stderr, and one JSON object on stdout.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "weft/cli/commands.h"
#include "weft/comm/group.h"
#include "weft/linear/linear.h"
#include "weft/linear/model/predict.h"
#include "weft/observe/progress_mode.h"

namespace weft::cli {

class LinearReport {
 public:
  // Throws Error(kInvalidArgument) for an unknown progress mode.
  static void check(const LinearCommand& command);
  // Only rank 0 prints.
  LinearReport(const LinearCommand& command, int rank);

  struct Data {
    double rows = 0, entries = 0, columns = 0;  // Of all ranks.
  };
  // Prints the size of the data and the time since `start`. Collective.
  Data loaded(const linear::SparseRows& rows, const Group& world,
              std::chrono::steady_clock::time_point start);
  // A round or an epoch: at most one line a second. In mode json, every one, as one JSON object.
  void progress(const linear::Report& report);
  // Of several problems, the line on stderr has the one with the largest gap, and its number.
  void done(const linear::Trained& trained, const linear::TrainOptions& options,
            const std::string& model_file);

 private:
  LinearCommand command_;
  int rank_;
  observe::ProgressMode mode_;
  Data data_;
  double read_seconds_ = 0;
  int ranks_ = 1;
  std::chrono::steady_clock::time_point last_line_{};
};

// Prints how good predictions are: a line on stderr, or one JSON object on stdout.
void report_quality(const LinearCommand& command, const linear::Model& model,
                    const linear::Quality& quality);

}  // namespace weft::cli
