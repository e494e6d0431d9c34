"""The Spark engine: a driver process under the compactor, its executors on RayDP.

    compactor actor ── socket pair, frames ── driver process ── py4j ── Spark ── executors
       engine.py                                 child.py

The driver is a process of its own because RayDP allows one application per Ray
namespace and Spark one per process, and so that its death harms nothing else.
"""
