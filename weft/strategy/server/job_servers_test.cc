// A center on the servers of the job (weft run --servers), which outlive groups of workers.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <array>
#include <memory>
#include <thread>

#include "weft/base/file.h"
#include "weft/base/testing/variables.h"
#include "weft/ps/job.h"
#include "weft/ps/server.h"
#include "weft/strategy/server/server_center.h"
#include "weft/strategy/testing/rules.h"

namespace weft::strategy {
namespace job_servers_test {

using rules_test::expect_close;
using rules_test::gradient;
using rules_test::initial;
using rules_test::kLr;

// The environment and the servers of a job.
class Job {
 public:
  Job() {
    directory_ = ps::job_directory(ps::kJobServers);
    for (std::uint32_t server = 0; server < 2; ++server) start(server);
  }
  void start(std::uint32_t server) {
    servers_[server] = nullptr;
    ps::ServerOptions options;
    options.directory = directory_.get();
    options.server = server;
    options.servers = 2;
    options.server_timeout = std::chrono::milliseconds(200);
    servers_[server] = std::make_unique<ps::Server>(options);
  }
  void wait_for_copies() const {
    const Deadline deadline = Deadline::in(std::chrono::seconds(10));
    while (!servers_[0]->is_replicated() || !servers_[1]->is_replicated()) {
      ASSERT_FALSE(deadline.passed());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

 private:
  const TempDir folder_;
  const TestVariables variables_{{{"WEFT_PS_FOLDER", folder_ / "ps"},
                                  {"WEFT_PS_SERVERS", "2"},
                                  {"WEFT_STORE", ""},
                                  {"WEFT_SECRET_FD", ""},
                                  {"TORCHELASTIC_RUN_ID", "job"},
                                  {"GROUP_WORLD_SIZE", "1"}}};
  std::unique_ptr<ps::Directory> directory_;
  std::array<std::unique_ptr<ps::Server>, 2> servers_;
};

at::Tensor trained_on_servers(int workers, const Strategy& strategy, int steps) {
  at::Tensor result;
  comm::replicate(workers, [&](const Group& group) {
    at::Tensor x = initial().to(torch::kFloat);
    const MakeCenter make = [](const Group& group_of_center, const at::Tensor& like) {
      return server_center(group_of_center, like);
    };
    const auto rule = make_rule(
        strategy, {.workers = group, .world = group, .weights = {x}, .make_center = make});
    for (int step = 1; step <= steps; ++step) {
      x.sub_(gradient(x.to(torch::kDouble), group.rank()), kLr);
      rule->after_step({step, kLr, 0, 1});
    }
    const at::Tensor all = rule->result().weights[0].clone();
    if (group.rank() == 0) result = all;
  });
  return result;
}

TEST(ServersOfTheJob, KeepTheCenterOfOneGroupOfWorkersAfterTheOther) {
  Job job;
  for (const int workers : {3, 2, 3}) {
    for (const char* name : {"downpour", "easgd_async"}) {
      const Strategy strategy{.name = name, .period = 2, .staleness = 0};
      const at::Tensor wanted = rules_test::train(workers, strategy, 12).result;
      expect_close(trained_on_servers(workers, strategy, 12), wanted, 1e-5);
    }
  }
}

// Ranks 0 and 1 have parts of the model on one worker, ranks 2 and 3 on the other.
TEST(ServersOfTheJob, KeepACenterForEachPartOfTheModel) {
  Job job;
  for (const char* name : {"downpour", "easgd_async"}) {
    const Strategy strategy{.name = name, .period = 2, .staleness = 0};
    const at::Tensor wanted = rules_test::train(2, strategy, 12).result;
    comm::replicate(4, [&](const Group& world) {
      const int part = world.rank() % 2, worker = world.rank() / 2;
      const Group workers = world.subgroup({part, part + 2}, "part " + std::to_string(part));
      const auto mine = [&](const at::Tensor& all) {
        return part == 0 ? all.narrow(0, 0, 3) : all.narrow(0, 3, all.numel() - 3);
      };
      const MakeCenter make = [&](const Group& group, const at::Tensor& like) {
        return server_center(group, like, {.all = world});
      };
      at::Tensor whole = initial().to(torch::kFloat), x = mine(whole);
      const auto rule = make_rule(
          strategy, {.workers = workers, .world = world, .weights = {x}, .make_center = make});
      for (int step = 1; step <= 12; ++step) {
        x.sub_(mine(gradient(whole.to(torch::kDouble), worker)), kLr);
        rule->after_step({step, kLr, 0, 1});
      }
      expect_close(rule->result().weights[0], mine(wanted), 1e-5);
    });
  }
}

TEST(ServersOfTheJob, KeepTheCenterWhenOneOfThemIsLost) {
  Job job;
  job.wait_for_copies();
  comm::replicate(2, [&](const Group& group) {
    const auto center = server_center(group, torch::zeros({200}));
    for (int round = 0; round < 3; ++round) {
      center->add(0, torch::ones({200}));
      group.barrier();
      if (group.rank() == 0 && round == 1) job.start(1);
      group.barrier();
    }
    EXPECT_TRUE(torch::equal(center->snapshot(), torch::full({200}, 6.0f)));
  });
}

}  // namespace job_servers_test
}  // namespace weft::strategy
