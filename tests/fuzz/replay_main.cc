// Runs a fuzz target without libFuzzer: over every file of its corpus, then over random changes of
// them. For continuous integration.
//
//   fuzz_config_replay CORPUS [RUNS [SEED]]     one file instead of a folder: that input alone, as
//                                               it is
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

using Input = std::vector<std::uint8_t>;

constexpr unsigned kSecondsAnInput = 10;
constexpr std::size_t kMaxBytes = 4096;

Input read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void run(const Input& input) {
  ::alarm(kSecondsAnInput);  // SIGALRM ends a process that hangs
  // A copy of exactly this size, so that a sanitizer sees a read beyond its end.
  const Input exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  ::alarm(0);
}

// libFuzzer's simplest changes: a bit, a byte, a number at the edge of its range, a piece left out,
// doubled, or of another input.
class Mutator {
 public:
  Mutator(const std::vector<Input>& corpus, std::uint64_t seed) : corpus_(corpus), random_(seed) {}

  Input next() {
    Input input = corpus_[below(corpus_.size())];
    for (std::size_t changes = 1 + below(8); changes > 0; --changes) change(input);
    if (input.size() > kMaxBytes) input.resize(kMaxBytes);
    return input;
  }

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void change(Input& input) {
    static constexpr std::uint64_t kEdges[] = {0,
                                               1,
                                               0x7f,
                                               0x80,
                                               0xff,
                                               0x7fff,
                                               0xffff,
                                               0x7fffffff,
                                               0xffffffff,
                                               ~std::uint64_t{0} >> 1,
                                               ~std::uint64_t{0}};
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min(1 + below(16), input.size() - at);
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        if (at < input.size()) input[at] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<std::uint8_t>(random_());
        break;
      case 2: {
        const std::uint64_t edge = kEdges[below(std::size(kEdges))];
        const std::size_t size =
            std::min<std::size_t>(input.size() - at, std::size_t{1} << below(4));
        if (size > 0) std::memcpy(input.data() + at, &edge, size);
        break;
      }
      case 3: input.erase(begin, begin + static_cast<std::ptrdiff_t>(length)); break;
      case 4: {
        const Input piece(begin, begin + static_cast<std::ptrdiff_t>(length));
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(below(input.size() + 1)),
                     piece.begin(), piece.end());
        break;
      }
      default: {
        const Input& other = corpus_[below(corpus_.size())];
        const std::size_t from = below(other.size());
        const std::size_t count = std::min(1 + below(64), other.size() - from);
        input.insert(begin, other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + count));
      }
    }
  }

  const std::vector<Input>& corpus_;
  std::mt19937_64 random_;
};

void save(const Input& input) {
  std::ofstream("fuzz-last-input", std::ios::binary)
      .write(reinterpret_cast<const char*>(input.data()),
             static_cast<std::streamsize>(input.size()));
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s CORPUS [RUNS [SEED]]\n", arguments[0]);
    return 2;
  }
  const std::filesystem::path corpus_path = arguments[1];
  const auto runs = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 0;
  std::vector<Input> corpus;
  if (std::filesystem::is_directory(corpus_path)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(corpus_path))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) corpus.push_back(read(file));
  } else {
    corpus.push_back(read(corpus_path));
  }
  for (const Input& input : corpus) run(input);
  Mutator mutator(corpus, count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1);
  for (std::uint64_t i = 0; i < runs; ++i) {
    const Input input = mutator.next();
    if (std::getenv("WEFT_FUZZ_SAVE") != nullptr)
      save(input);  // the last one is the one that ended it
    run(input);
  }
  std::printf("%zu inputs and %llu changes of them\n", corpus.size(),
              static_cast<unsigned long long>(runs));
  return corpus.empty() ? 1 : 0;
}
