// The ranks of servers_test.py: workers of the job's parameter servers, which they find through
// the environment. Each pushes ones until the file `stop` exists in the working folder, then its
// number of pushes. All wait for each other, and compare the sum of the values with that of the
// numbers: no push is lost, none is applied twice. No libtorch, so that a rank starts at once.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "weft/base/error.h"
#include "weft/ps/client.h"
#include "weft/ps/job.h"

namespace {

using namespace std::chrono_literals;

constexpr const char *kOnes = "ones", *kPushes = "pushes", *kDone = "done";
constexpr std::size_t kCount = 1000;

void push(weft::ps::Client& client, const char* tensor, float value) {
  for (float& one : client.gradient(tensor)) one = value;
  client.wait(client.push({tensor}));
}

float pull(weft::ps::Client& client, const char* tensor) {
  client.wait(client.pull({tensor}));
  return client.value(tensor)[0];
}

int work() {
  const std::string rank = std::getenv("RANK"), world = std::getenv("WORLD_SIZE");
  weft::ps::Client client(weft::ps::job_client());
  const std::vector<float> zeros(kCount), zero(1);
  client.define({{kOnes, zeros}, {kPushes, zero}, {kDone, zero}},
                {.rule = std::nullopt, .staleness = weft::ps::kAsync});
  client.join();
  int pushes = 0;
  while (pushes < 20 || ::access("stop", F_OK) != 0) {
    push(client, kOnes, 1);
    if (++pushes == 20) std::ofstream("pushed" + rank);
  }
  push(client, kPushes, static_cast<float>(pushes));
  push(client, kDone, 1);
  const auto late = std::chrono::steady_clock::now() + 30s;
  while (pull(client, kDone) < std::stof(world)) {
    if (std::chrono::steady_clock::now() > late) return 3;
    std::this_thread::sleep_for(1ms);
  }
  client.wait(client.pull());
  for (const float value : client.value(kOnes)) {
    if (value != client.value(kPushes)[0]) {
      std::cerr << "rank " << rank << ": " << value << " pushes arrived of "
                << client.value(kPushes)[0] << '\n';
      return 4;
    }
  }
  std::cout << "rank " << rank << ": all pushes arrived once" << std::endl;
  return 0;
}

}  // namespace

int main() {
  try {
    return work();
  } catch (const std::exception& error) {
    std::cerr << "weft: " << weft::describe(error) << '\n';
    return weft::exit_code(weft::code_of(error));
  }
}
