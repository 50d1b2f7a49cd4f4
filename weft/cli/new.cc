// `weft new`: creates a project that trains the user's own model.
#include <cctype>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/cli/commands.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLists = R"(cmake_minimum_required(VERSION 3.25)
project(@NAME@ LANGUAGES CXX)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

@WHERE@find_package(weft CONFIG REQUIRED)
add_executable(@NAME@ main.cc)
target_link_libraries(@NAME@ PRIVATE weft::weft)

enable_testing()
add_test(NAME learns
  COMMAND @NAME@ ${CMAKE_SOURCE_DIR}/train.toml run.dir=${CMAKE_BINARY_DIR}/test.runs)
)";

constexpr const char* kProgram = R"(// Trains a net. The words after the file change its keys:
//   @NAME@ train.toml train.epochs=10
//   weft run -n 2 @NAME@ train.toml parallel.fsdp=2
//   @NAME@ train.toml --resume
#include <torch/torch.h>

#include <iostream>
#include <string>
#include <vector>

@HEADER@

namespace nn = torch::nn;

// Your data: here points of two classes, inside and outside of a ring. Any dataset of torch::data
// will do, such as datasets::MNIST.
struct Points : torch::data::Dataset<Points> {
  Points(int64_t count, uint64_t seed) {
    torch::manual_seed(seed);
    points = torch::rand({count, 2}) * 2 - 1;
    const torch::Tensor radius = points.square().sum(1);
    labels = radius.gt(0.2).logical_and(radius.lt(0.8)).to(torch::kLong);
  }
  torch::data::Example<> get(size_t i) override {
    const auto at = static_cast<int64_t>(i);
    return {points[at], labels[at]};
  }
  std::optional<size_t> size() const override { return points.size(0); }
  torch::Tensor points, labels;
};

int main(int argc, char** argv) {
  try {
    std::vector<std::string> words(argv + 1, argv + argc);
    const bool resume = !words.empty() && words.back() == "--resume";
    if (resume) words.pop_back();
    const std::string file = words.empty() ? "train.toml" : words[0];
    if (!words.empty()) words.erase(words.begin());
    auto options = weft::train::load_options(file, words);
    options.program = "@NAME@";
    options.resume = resume;
    options.progress = weft::observe::ProgressMode::kAuto;

    const auto world = weft::init();  // alone, or a rank of `weft run`, torchrun, mpirun or srun

    // Your model. The entries of a Sequential can be stages of a pipeline (parallel.pp); any other
    // module is one block.
    torch::manual_seed(options.plan.seed);
    nn::Sequential net(nn::Linear(2, 64), nn::ReLU(), nn::Linear(64, 64), nn::ReLU(),
                       nn::Linear(64, 2));

    // Your loss: the mean over the samples. Metrics are means, too.
    const auto loss = [](const torch::Tensor& output, const torch::Tensor& target) {
      return nn::functional::cross_entropy(output, target);
    };
    const auto accuracy = [](const torch::Tensor& output, const torch::Tensor& target) {
      return output.argmax(1).eq(target).to(torch::kDouble).mean();
    };
    weft::Task task(weft::blocks_of(net), loss);
    task.metrics.push_back({"accuracy", accuracy});
    task.train = weft::train::dataset(Points(4096, 1));
    task.test = weft::train::dataset(Points(1024, 2));

    const auto result = weft::Trainer(task, options, world).run();
    if (world.rank() == 0) std::cout << weft::train::to_json(result) << std::endl;
    return result.accuracy > 0.9 ? 0 : 1;
  } catch (const std::exception& error) {  // of weft, libtorch or the system
    std::cerr << "@NAME@: " << weft::describe(error) << '\n';
    return weft::exit_code(weft::code_of(error));
  }
}
)";

constexpr const char* kToml =
    R"(# How @NAME@ trains. Unknown keys are refused; `weft train shapes --dry-run` prints them.
[train]
epochs = 10
batch = 64

[optimizer]
name = "adamw"
lr = 0.01

[schedule]
name = "cosine"
warmup_epochs = 0.5
)";

constexpr const char* kPage = R"(# @NAME@

```
@INSTALL@cmake -B build@OPTION@ && cmake --build build
./build/@NAME@ train.toml                    # a run folder in runs/: metrics, checkpoints, log
weft run -n 2 ./build/@NAME@ train.toml      # two ranks
./build/@NAME@ train.toml --resume           # goes on with the newest run
ctest --test-dir build
```

CMake takes the libtorch that `Torch_DIR` names, that of `python3`, or the one that weft was built
with. `find_package(Torch)` is not needed; `weft::torch` is the libtorch alone.

Add `parallel.fsdp=2` or `parallel.pp=2` after `train.toml` to divide the model over two ranks.
)";

// How the project's CMake finds weft.
struct Package {
  std::string lists;    // line of CMakeLists.txt
  std::string install;  // command that installs the package first
  std::string option;   // option of cmake -B build
};

// The package that contains this command: that of its prefix, which CMake may search by default, or
// the one that its build folder installs.
Package package() {
  std::error_code ignored;
  const fs::path prefix = fs::read_symlink("/proc/self/exe", ignored).parent_path().parent_path();
  if (fs::exists(prefix / "lib/cmake/weft/weftConfig.cmake", ignored)) {
    if (prefix == "/usr" || prefix == "/usr/local") return {};
    return {"list(APPEND CMAKE_PREFIX_PATH \"" + prefix.string() + "\")\n", "", ""};
  }
  if (fs::exists(prefix / "build_to_install.cmake", ignored))
    return {"", "cmake --install \"" + prefix.string() + "\" --prefix \"$HOME/.local\"",
            " -DCMAKE_PREFIX_PATH=\"$HOME/.local\""};
  return {"", "", " -DCMAKE_PREFIX_PATH=PREFIX_OF_WEFT"};
}

std::string filled(std::string text, const std::string& name, const Package& from) {
  const std::string header = "#include <weft/weft.h>";
  const std::string install =
      from.install.empty() ? "" : from.install + "   # once: installs weft\n";
  for (const auto& [mark, value] : {std::pair<std::string, std::string>{"@NAME@", name},
                                    {"@WHERE@", from.lists},
                                    {"@INSTALL@", install},
                                    {"@OPTION@", from.option},
                                    {"@HEADER@", header}}) {
    for (auto at = text.find(mark); at != std::string::npos;
         at = text.find(mark, at + value.size()))
      text.replace(at, mark.size(), value);
  }
  return text;
}

void check_name(const std::string& name) {
  bool good = !name.empty() && std::isalpha(static_cast<unsigned char>(name[0])) != 0;
  for (const char c : name)
    good = good && (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-');
  if (!good) {
    throw Error(Errc::kInvalidArgument,
                "weft new: \"" + name +
                    "\" is no name for a program: letters, digits, _ and -, a letter first");
  }
  // Targets of CMake itself (CMP0037) and of the packages that weft finds, and files that CMake
  // makes in the folder of the program.
  static const std::set<std::string> kTaken{
      "ALL_BUILD",  "CMakeFiles",    "INSTALL", "Makefile", "PACKAGE",   "RUN_TESTS",
      "Testing",    "ZERO_CHECK",    "all",     "c10",      "clean",     "depend",
      "dummy",      "edit_cache",    "help",    "install",  "package",   "package_source",
      "preinstall", "rebuild_cache", "test",    "torch",    "torch_cpu", "torch_library"};
  if (kTaken.contains(name))
    throw Error(Errc::kInvalidArgument,
                "weft new: \"" + name +
                    "\" is the name of a target or a file of CMake or libtorch, which no program "
                    "can have; choose another one");
}

// A word of a shell's command.
std::string shell_word(const std::string& text) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+=:@%,";
  if (text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

}  // namespace

int new_project(const NewCommand& command) {
  const fs::path folder(command.folder);
  const std::string name =
      (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  check_name(name);
  std::error_code ignored;
  if (fs::exists(folder, ignored))
    throw Error(Errc::kInvalidArgument, "weft new: " + folder.string() + " exists already");
  const Package from = package();
  make_directories(folder.string());
  constexpr std::pair<const char*, const char*> kFiles[] = {{"CMakeLists.txt", kLists},
                                                            {"main.cc", kProgram},
                                                            {"train.toml", kToml},
                                                            {"README.md", kPage}};
  for (const auto& [file, text] : kFiles) {
    write_file_atomic((folder / file).string(), filled(text, name, from));
  }
  std::cout << folder.string() << ": CMakeLists.txt, main.cc, train.toml, README.md\n";
  if (!from.install.empty()) std::cout << "  " << from.install << "   # once: installs weft\n";
  std::cout << "  cd " << shell_word(folder.string()) << " && cmake -B build" << from.option
            << " && cmake --build build && ./build/" << name << " train.toml\n";
  return 0;
}

}  // namespace weft::cli
