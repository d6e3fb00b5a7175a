"""Agents of litellm, pydantic-ai and LangGraph as users write them: they join the `AGENTS` of client_agents.py."""

from __future__ import annotations

import json
from typing import Any

from .client_agents import KEY, agent, user


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A call of a tool, as a model makes it."""
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


# litellm


def options(root: str, provider: str, question: str) -> dict[str, Any]:
    base = root + {"openai": "/v1", "anthropic": "", "gemini": "/v1beta"}[provider]
    return {"model": f"{provider}/m", "messages": user(question), "api_base": base, "api_key": "k", "num_retries": 0}


def lite(provider: str) -> None:
    def whole(root: str, question: str) -> Any:
        import litellm

        return litellm.completion(**options(root, provider, question)).choices[0].message.content

    def stream(root: str, question: str) -> Any:
        import litellm

        chunks = litellm.completion(**options(root, provider, question), stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    async def whole_async(root: str, question: str) -> Any:
        import litellm

        return (await litellm.acompletion(**options(root, provider, question))).choices[0].message.content

    async def stream_async(root: str, question: str) -> Any:
        import litellm

        chunks = await litellm.acompletion(**options(root, provider, question), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    for function in (whole, stream, whole_async, stream_async):
        function.__name__ = f"litellm_{provider}_{function.__name__}"
        agent("litellm")(function)


lite("openai")
lite("anthropic")
lite("gemini")


# pydantic-ai


def pydantic(root: str, vendor: str) -> Any:
    from pydantic_ai import Agent

    if vendor == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return Agent(AnthropicModel("m", provider=AnthropicProvider(base_url=root, api_key="k")), tools=[add])
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if vendor == "responses" else OpenAIChatModel
    return Agent(kind("m", provider=OpenAIProvider(base_url=f"{root}/v1", api_key="k")), tools=[add])


def typed(vendor: str) -> None:
    def run_sync(root: str, question: str) -> Any:
        return pydantic(root, vendor).run_sync(question).output

    async def run(root: str, question: str) -> Any:
        return (await pydantic(root, vendor).run(question)).output

    async def run_stream(root: str, question: str) -> Any:
        async with pydantic(root, vendor).run_stream(question) as result:
            return [text async for text in result.stream_text(debounce_by=None)]

    for function in (run_sync, run, run_stream):
        function.__name__ = f"pydantic_ai_{vendor}_{function.__name__}"
        agent("pydantic_ai", "openai", "anthropic", calls=2)(function)


typed("openai")
typed("responses")
typed("anthropic")


# LangGraph: a planner, then a solver with a tool; the planner answers easy questions alone


def chat(root: str, model: str, streaming: bool = False) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=model, base_url=f"{root}/v1", streaming=streaming, **KEY)


def told(system: str, model: Any) -> Any:
    """A node: the model with a system prompt, sync and async."""
    from langchain_core.messages import SystemMessage
    from langchain_core.runnables import RunnableLambda

    asked = RunnableLambda(lambda state: [SystemMessage(system), *state["messages"]])
    return asked | model | (lambda said: {"messages": [said]})


def graph(root: str, streaming: bool = False) -> Any:
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    made = StateGraph(MessagesState)
    made.add_node("planner", told("You plan.", chat(root, "planner-model", streaming)))
    made.add_node("solver", told("You solve.", chat(root, "solver-model", streaming).bind_tools([add])))
    made.add_node("tools", ToolNode([add]))
    made.add_edge(START, "planner")
    done = lambda state: END if state["messages"][-1].content.startswith("done") else "solver"  # noqa: E731
    made.add_conditional_edges("planner", done, [END, "solver"])
    made.add_conditional_edges("solver", tools_condition)
    made.add_edge("tools", "solver")
    return made.compile()


def fan(root: str) -> Any:
    """A planner, then three solvers side by side."""
    from langgraph.graph import START, MessagesState, StateGraph

    made = StateGraph(MessagesState)
    made.add_node("planner", told("You plan.", chat(root, "planner-model")))
    made.add_edge(START, "planner")
    for name in ("left", "middle", "right"):
        made.add_node(name, told(f"You solve {name}.", chat(root, "solver-model")))
        made.add_edge("planner", name)
    return made.compile()


def ask(question: str) -> Any:
    return {"messages": [("user", question)]}


@agent("langgraph", "langchain_openai", calls=3)
def langgraph_invoke(root: str, question: str) -> Any:
    return [m.content for m in graph(root).invoke(ask(question))["messages"]]


@agent("langgraph", "langchain_openai", calls=3)
def langgraph_stream(root: str, question: str) -> Any:
    return [list(step) for step in graph(root).stream(ask(question), stream_mode="updates")]


@agent("langgraph", "langchain_openai", calls=3)
def langgraph_stream_tokens(root: str, question: str) -> Any:
    tokens = graph(root, streaming=True).stream(ask(question), stream_mode="messages")
    return [(said.content, about["langgraph_node"]) for said, about in tokens]


@agent("langgraph", "langchain_openai", calls=4)
def langgraph_parallel(root: str, question: str) -> Any:
    return sorted(m.content for m in fan(root).invoke(ask(question))["messages"])


@agent("langgraph", "langchain_openai", calls=3)
async def langgraph_ainvoke(root: str, question: str) -> Any:
    return [m.content for m in (await graph(root).ainvoke(ask(question)))["messages"]]


@agent("langgraph", "langchain_openai", calls=3)
async def langgraph_astream_tokens(root: str, question: str) -> Any:
    tokens = graph(root, streaming=True).astream(ask(question), stream_mode="messages")
    return [(said.content, about["langgraph_node"]) async for said, about in tokens]


@agent("langgraph", "langchain_openai", calls=4)
async def langgraph_parallel_async(root: str, question: str) -> Any:
    return sorted(m.content for m in (await fan(root).ainvoke(ask(question)))["messages"])
