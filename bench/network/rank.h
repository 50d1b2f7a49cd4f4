// Every rank of this benchmark, with any library, reads one command per line, executes it together
// with the other ranks, and answers one line. It uses stdin and stdout, or the files
// $WEFT_NETWORK_COMMANDS.RANK and $WEFT_NETWORK_ANSWERS.RANK, since mpirun passes stdin only to
// rank 0.
//
//   all_reduce BYTES SAMPLES WARMUP BLOCK   ->   "ok us us us …", or "wrong INDEX"
//   quit
//
// Each sample is the mean time of BLOCK calls, and begins after a barrier. Before the measurement,
// every rank verifies a sum.
#pragma once

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "bench/peers/command.h"

namespace weft::bench {

struct Library {
  int rank = 0;
  int world = 1;
  std::function<void(float* data, std::size_t count)> all_reduce;  // in place, sum
  std::function<void()> barrier;
  std::function<float*(std::size_t bytes)> allocate = {};  // never freed; empty: ordinary memory
};

// The vector that is reduced.
class Vector {
 public:
  std::span<float> of(std::size_t count, const Library& library) {
    if (library.allocate && count != data_.size())
      data_ = {library.allocate(count * sizeof(float)), count};
    if (!library.allocate && count != data_.size()) {
      ordinary_ = std::vector<float>(count);
      data_ = ordinary_;
    }
    return data_;
  }

 private:
  std::vector<float> ordinary_;
  std::span<float> data_;
};

inline std::string carry_out(const Library& library, Vector& vector, std::istream& command) {
  std::size_t bytes = 0;
  int samples = 0, warmup = 0, block = 1;
  command >> bytes >> samples >> warmup >> block;
  const std::span<float> data = vector.of(bytes / sizeof(float), library);
  const auto fill = [&] {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = element(library.rank, i);
  };
  fill();
  library.all_reduce(data.data(), data.size());
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (data[i] != element_sum(library.world, i)) return "wrong " + std::to_string(i);
  }
  fill();  // later sums grow; the time of an addition does not depend on the values
  std::ostringstream answer;
  answer << "ok" << std::fixed << std::setprecision(2);
  for (int sample = -warmup; sample < samples; ++sample) {
    library.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < block; ++call) library.all_reduce(data.data(), data.size());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (sample >= 0) answer << ' ' << took.count() / block;
  }
  return answer.str();
}

// Executes commands until "quit" or the end of the input.
inline void serve(const Library& library) {
  std::ifstream file;
  std::ofstream out;
  const auto path = [&](const char* name) {
    return std::string(name) + "." + std::to_string(library.rank);
  };
  if (const char* commands = std::getenv("WEFT_NETWORK_COMMANDS")) file.open(path(commands));
  if (const char* answers = std::getenv("WEFT_NETWORK_ANSWERS")) out.open(path(answers));
  std::istream& in = file.is_open() ? file : std::cin;
  std::ostream& to = out.is_open() ? out : std::cout;
  Vector data;
  for (std::string line; std::getline(in, line) && line != "quit";) {
    std::istringstream words(line);
    std::string operation;
    words >> operation;
    to << (operation == "all_reduce" ? carry_out(library, data, words)
                                     : "no such command: " + operation)
       << std::endl;
  }
}

}  // namespace weft::bench
