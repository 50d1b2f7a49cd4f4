// Four ranks train, save and resume a model under a memory limit of half of its state each.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "weft/base/file.h"
#include "weft/comm/allocator.h"
#include "weft/comm/backend.h"
#include "weft/train/dataset.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using parallel::Tensors;

constexpr int kRanks = 4, kEpochs = 2;
constexpr std::int64_t kBatch = 8, kStepsPerEpoch = 2;
constexpr std::int64_t kWidth = 1024, kBlocks = 128;
constexpr std::int64_t kParameters = kBlocks * kWidth * kWidth;
constexpr std::int64_t kState = kParameters * 2 * 4;  // parameters and momentum, float32: 1 GiB
constexpr std::int64_t kLimit = kState / 2;           // as many bytes as all parameters

std::string one_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool write_line(const std::string& path, const std::string& line) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool good = ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  return ::close(fd) == 0 && good;
}

// A control group with a limit, removed at the end. Below this process's own.
class MemoryGroup {
 public:
  explicit MemoryGroup(int rank) {
    std::ifstream groups("/proc/self/cgroup");
    std::string v1, v2;
    for (std::string line; std::getline(groups, line);) {
      if (line.find(":memory:") != std::string::npos)
        v1 = "/sys/fs/cgroup/memory" + line.substr(line.find(":memory:") + 8);
      if (line.starts_with("0::")) v2 = "/sys/fs/cgroup" + line.substr(3);
    }
    const std::string below =
                          "/weft-capped-" + std::to_string(::getpid()) + "-" + std::to_string(rank),
                      limit = std::to_string(kLimit);
    std::error_code failed;
    if (!v1.empty() && fs::create_directory(path_ = v1 + below, failed)) {
      peak_ = path_ + "/memory.max_usage_in_bytes";
      good_ = write_line(path_ + "/memory.limit_in_bytes", limit);
    } else if (!v2.empty() && fs::create_directory(path_ = v2 + below, failed)) {
      peak_ = path_ + "/memory.peak";
      good_ = write_line(path_ + "/memory.max", limit);
      write_line(path_ + "/memory.swap.max", "0");
    } else {
      path_.clear();
    }
  }
  ~MemoryGroup() {
    if (!path_.empty()) ::rmdir(path_.c_str());
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool good() const { return good_; }
  bool take(pid_t process) const {
    return write_line(path_ + "/cgroup.procs", std::to_string(process));
  }
  std::int64_t peak() const {
    const std::string bytes = one_line(peak_);
    return bytes.empty() ? 0 : std::stoll(bytes);
  }

 private:
  std::string path_, peak_;
  bool good_ = false;
};

struct Layer : torch::nn::Module {
  Layer() {
    fc = register_module("fc",
                         torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return x + 0.1 * torch::tanh(fc(x)); }
  torch::nn::Linear fc{nullptr};
};

parallel::BlockModel model() {
  parallel::BlockModel model;
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    model.blocks.push_back({"layer." + std::to_string(i), [](const parallel::Contexts& contexts) {
                              const at::Generator generator = contexts.tp.generator();
                              auto layer = std::make_shared<Layer>();
                              const torch::NoGradGuard guard;
                              for (auto& parameter : layer->parameters())
                                parameter.uniform_(-0.03, 0.03, generator);
                              return engine::block(layer);
                            }});
  }
  model.loss = [](const Tensors& y, const Tensors& target, const parallel::Contexts&) {
    return (y[0] - target[0]).square().mean();
  };
  return model;
}

at::Tensor inputs(const std::vector<std::int64_t>& indices) {
  const at::Tensor row =
      at::tensor(indices, at::kLong).unsqueeze(1) * kWidth + torch::arange(kWidth).unsqueeze(0);
  return (row.remainder(97) / 97. + row.remainder(13)).sin().to(torch::kFloat);
}

train::Task task() {
  train::Task task;
  task.model = model();
  task.train = task.test =
      train::samples(kBatch * kStepsPerEpoch, [](const std::vector<std::int64_t>& indices) {
        const at::Tensor x = inputs(indices);
        return std::pair(x, x.flip(1));
      });
  return task;
}

// A rank of the first run, or of the second, which resumes it under another plan. Writes the loss
// at the end.
int rank_main(int rank, const std::string& folder, bool resumes) {
  at::set_num_threads(1);
  comm::install_allocator();  // as init() does
  const auto store =
      c10::make_intrusive<c10d::FileStore>(folder + (resumes ? "/second" : "/first"), kRanks);
  const Group group(comm::make_backend(store, rank, kRanks, {.transport = comm::Transport::kShm}),
                    "capped");
  train::Options options;
  options.epochs = kEpochs;
  options.batch = kBatch;
  options.prefetch = 0;
  options.dir = folder;
  options.name = "run";
  options.resume = resumes;
  options.mesh = resumes ? "pp=2,fsdp=2"
                         : "fsdp=4";  // other shards, and stages: each rank reads what it needs
  options.plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(0.05).momentum(0.9), {});
  options.plan.seed = 5;
  options.plan.micro_batches = 1;
  options.plan.weights = engine::Weights::kPrivate;  // as ranks of several hosts have it
  options.plan.cuts = resumes ? std::vector<int>{kBlocks / 2} : std::vector<int>{};
  const double loss = train::Trainer(task(), options, group).run().loss;
  if (rank == 0)
    std::ofstream(folder + (resumes ? "/second.loss" : "/first.loss")) << std::hexfloat << loss;
  return 0;
}

// Runs the ranks as processes of their own. Gives their peaks.
std::vector<std::int64_t> run_capped(const std::string& program, const std::string& folder,
                                     bool resumes) {
  std::vector<std::unique_ptr<MemoryGroup>> groups;
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    groups.push_back(std::make_unique<MemoryGroup>(rank));
    const std::string number = std::to_string(rank), how = resumes ? "resume" : "train";
    const pid_t child = ::fork();
    if (child == 0) {
      if (!groups.back()->take(::getpid())) ::_exit(97);
      ::execl(program.c_str(), program.c_str(), "--rank", number.c_str(), folder.c_str(),
              how.c_str(), nullptr);
      ::_exit(98);
    }
    EXPECT_GT(child, 0);
    children.push_back(child);
  }
  std::vector<std::int64_t> peaks;
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    EXPECT_EQ(::waitpid(children[static_cast<std::size_t>(rank)], &status, 0),
              children[static_cast<std::size_t>(rank)]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << (WIFSIGNALED(status) ? " was killed by signal " : " ended with ")
        << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    peaks.push_back(groups[static_cast<std::size_t>(rank)]->peak());
  }
  return peaks;
}

std::string text(const std::vector<std::int64_t>& peaks) {
  std::string all;
  for (const std::int64_t peak : peaks) all += " " + std::to_string(peak >> 20);
  return all;
}

TEST(MemoryCapped, FourRanksOfHalfTheStateEachTrainSaveAndResume) {
  if (!MemoryGroup(kRanks).good()) GTEST_SKIP() << "memory control groups cannot be made here";
  const TempDir folder;
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  const auto first = run_capped(program, folder.path(), false);
  ASSERT_FALSE(::testing::Test::HasFailure());
  fs::remove_all(folder / "run/ckpt/step-00000004");
  const auto second = run_capped(program, folder.path(), true);
  ASSERT_FALSE(::testing::Test::HasFailure());
  std::cout << "state " << (kState >> 20) << " MiB, limit of each rank " << (kLimit >> 20)
            << " MiB; peaks, with the page cache:" << text(first) << "; resumed:" << text(second)
            << "\n";
  const double loss = std::stod(one_line(folder / "first.loss")),
               resumed = std::stod(one_line(folder / "second.loss"));
  EXPECT_GT(loss, 0);
  EXPECT_NEAR(resumed, loss, 1e-5 * loss);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--rank") {
    try {
      return weft::rank_main(std::stoi(argv[2]), argv[3], std::string(argv[4]) == "resume");
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %s: %s\n", argv[2], error.what());
      return 1;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
