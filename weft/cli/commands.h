// The subcommands of `weft`: what each was asked, and the function that does it. Each returns the exit code; what it throws main() turns
// into one line on stderr and the error's exit code.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "weft/elastic/launcher.h"

namespace weft::cli {

struct TrainCommand {
  std::string recipe;
  std::optional<int> ranks;              // none: 1, or what the launcher says
  std::vector<std::string> assignments;  // a.b=c
  std::string name;                      // of the run; empty: date and recipe
  std::string progress = "auto";
  std::string trace;  // steps=FIRST:LAST
  bool resume = false;
  bool dry_run = false;
  bool json = false;
  bool check = false;  // against the recipe's expected.toml
};
int train(const TrainCommand& command);

int run(const elastic::LaunchOptions& options);

struct DoctorCommand {
  bool json = false;
};
int doctor(const DoctorCommand& command);

struct ScheduleCommand {
  std::string algorithm;
  std::string collective = "all_reduce";
  int ranks = 8;
  std::int64_t count = 0;  // 0: a length that shows the algorithm well
  int root = 0;
  std::string svg;  // file to write; empty: a table on stdout
  bool json = false;
};
int schedule_show(const ScheduleCommand& command);
int schedule_list(bool json);

// Reads the command line and does what it says. Prints usage errors itself.
int weft_main(int argc, char** argv);

}  // namespace weft::cli
